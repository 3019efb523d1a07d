// How the simulator plays a copy between the device and a pool outside: as one command of the link,
// or, where the host keeps it compressed, in pieces that the host's threads compress and
// decompress.

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

namespace spillway {

// Nothing is compressed.
class SimCopyPath {
 public:
  // The arguments outlive the path.
  SimCopyPath(const Device& device, const CostModel& cost, IssueQueue& queue)
      : device_(device), cost_(cost), queue_(queue) {}
  virtual ~SimCopyPath() = default;

  virtual Event Copy(PoolId pool, Direction direction, const Block& outside, Bytes size,
                     std::span<const Wait> waits);
  // A storage has taken a block of the host pool.
  virtual void OnHostBlock(TensorId /*storage*/, const Block& /*host*/) {}
  // Commands have been played, of which none began before `from`.
  virtual void NotePlayed(const Program&, const LaneTimes&, Duration /*from*/) {}
  // The iteration has ended: what compression cost in it.
  virtual CompressionTimes TakeTimes() { return {}; }

 protected:
  const Device& device_;
  const CostModel& cost_;
  IssueQueue& queue_;
};

// A copy of a storage that the host keeps compressed is played as many: each piece waits for a
// staging buffer or for its contents. REQUIRES: the queue splits.
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
  // The thread's work on a piece, from now on.
  Command Work(Bytes piece, Bandwidth bandwidth) const;
  // A piece's way over the link, from now on, once the host has enqueued it.
  Command Piece(Direction direction, Bytes piece) const;

  const HostCompression& compression_;
  std::map<Bytes, TensorId> owners_;  // of blocks of the host pool, by offset
  std::map<Bytes, uint32_t> stored_;  // blocks kept compressed, and the command of the first piece;
                                      // 0 where an earlier iteration had it
  std::vector<LaneEvent> landed_;     // copies of pieces that were decompressed
  CompressionTimes times_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SIM_COPY_PATH_H_
