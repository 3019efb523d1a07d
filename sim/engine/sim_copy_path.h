// The simulation of a copy between the device and a pool outside. A copy is one command of the
// link. If the host keeps the storage compressed, it is a sequence of pieces that the host's
// threads compress or decompress.

#ifndef SPILLWAY_SIM_ENGINE_SIM_COPY_PATH_H_
#define SPILLWAY_SIM_ENGINE_SIM_COPY_PATH_H_

#include <map>
#include <span>
#include <vector>

#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/engine/issue_queue.h"

namespace spillway::sim {

// A copy path without compression.
class SimCopyPath {
 public:
  // The arguments outlive the path.
  SimCopyPath(const Device& device, const CostModel& cost, IssueQueue& queue)
      : device_(device), cost_(cost), queue_(queue) {}
  virtual ~SimCopyPath() = default;

  virtual Event Copy(PoolId pool, Direction direction, const Block& outside, Bytes size,
                     std::span<const Wait> waits);
  // Called when a storage has taken a block of the host pool.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  // Called when commands have been played. No command began before `from`.
  virtual void NotePlayed(const Program&, const LaneTimes&, Duration /*from*/) {}
  // Called at the end of an iteration. Returns the time that compression took in it.
  virtual CompressionTimes TakeTimes() { return {}; }

 protected:
  const Device& device_;
  const CostModel& cost_;
  IssueQueue& queue_;
};

// A copy path that plays a copy of a compressed storage as several commands. Each piece waits for a
// staging buffer or for its contents. REQUIRES: the queue was made with `splits`.
class SimCompressedCopyPath final : public SimCopyPath {
 public:
  SimCompressedCopyPath(const Device& device, const CostModel& cost, IssueQueue& queue,
                        const HostCompression& compression)
      : SimCopyPath(device, cost, queue), compression_(compression) {}

  Event Copy(PoolId pool, Direction direction, const Block& outside, Bytes size,
             std::span<const Wait> waits) override;
  void OnHostBlock(TensorId storage, const Block& host) override;
  void NotePlayed(const Program& program, const LaneTimes& times, Duration from) override;
  CompressionTimes TakeTimes() override;

 private:
  Event CopyOut(const Block& host, Bytes size, std::span<const Wait> waits);
  Event CopyIn(const Block& host, Bytes size, std::span<const Wait> waits);
  // Returns the command for a thread's work on a piece, issued now.
  Command Work(Bytes piece, Bandwidth bandwidth) const;
  // Returns the command that moves a piece over the link. The host enqueues it now.
  Command Piece(Direction direction, Bytes piece) const;

  const HostCompression& compression_;
  std::map<Bytes, TensorId> owners_;  // owners of the blocks of the host pool, by offset
  // The compressed blocks, and the number of the command that compressed their first piece; 0 if
  // an earlier iteration compressed it.
  std::map<Bytes, uint32_t> stored_;
  std::vector<LaneEvent> landed_;  // copies of decompressed pieces to the device
  CompressionTimes times_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ENGINE_SIM_COPY_PATH_H_
