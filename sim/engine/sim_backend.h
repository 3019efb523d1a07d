// The simulator behind the seam: a backend that computes when each command would have run.
//
// The host enqueues one library call at a time, `launch_overhead` each; those of the convolution
// library take `library_call` where blocks are calls of the driver. Commands are collected until
// `Synchronize`, which plays them in one go. Nothing is executed and no memory is touched.
// Calls of the driver hold up the host; those that give memory back wait besides until everything
// issued has ended: what follows is played on its own from there. A copy of a storage that the host
// keeps compressed is played as many: each piece waits for a staging buffer or for its contents.

#ifndef SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
#define SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/engine/links.h"
#include "sim/engine/schedule.h"

namespace spillway {

class SimBackend final : public Backend {
 public:
  // Device and cost model outlive the backend. `charge_driver`: blocks are calls of the driver
  // (`Backing::kBlocks`); those before an iteration's first command are not part of it.
  // `compression` outlives the backend too; nullptr: the host pool is pinned memory.
  SimBackend(const Device& device, const CostModel& cost, bool charge_driver = false,
             const HostCompression* compression = nullptr)
      : device_(device),
        cost_(cost),
        links_(device),
        charge_driver_(charge_driver),
        compression_(compression) {}

  std::string_view Name() const override { return "sim"; }
  // These and `OnAllocate`, `OnFree` and `OnDriverCall` throw `InputError` if the host would be
  // busy for more than 53 days in an iteration.
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnAllocate(const Block& block) override;
  void OnFree(const Block& block) override;
  void OnDriverCall(const DriverCall& call) override;
  void OnHostBlock(TensorId tensor, const Block& block) override;

  // Of the commands that `TakeTimeline` returned last.
  const CompressionTimes& compression_times() const { return compression_times_; }

 private:
  // Plays what has been issued since the last time.
  void Drain();
  // The host is busy for so long.
  void Spend(Duration time);
  // Holds up the host for a call of the driver.
  void Charge(const DriverCall& call);
  bool begun() const { return host_now_ > Duration(); }
  // The host goes on after `calls` library calls of this time each; the first of them is that of
  // the command.
  Event Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls,
            Duration time);
  // Holds up the host before an op if it is too far ahead of the compute stream.
  void KeepClose();
  // The wait of the first command that a lane gets after that; others of the lane come later
  // anyway.
  void AddGate(Stream lane, Command& command);
  // Adds a command that can start when it is issued, after commands of other lanes.
  Event AddToLane(Stream lane, Command command, std::span<const Event> waits);
  // Copies by pieces, to and from the compressed store.
  Event CopyCompressed(Direction direction, const Block& host, Bytes size,
                       std::span<const Wait> waits);
  // What a lane knows as the given command of the stream.
  Event LaneEvent(const Event& event) const;
  void CountCompression(const LaneTimes& times);

  const Device& device_;
  const CostModel& cost_;
  const Links links_;
  const bool charge_driver_;
  const HostCompression* const compression_;
  Program program_;
  LaneTimes times_;
  Duration host_now_;
  // Commands of each lane whose times are known, and when the last of them ended.
  std::array<uint32_t, kLaneCount> played_{};
  Duration drained_;
  // The end of the op that the host waited for last, and the lanes that have had nothing since.
  Event gate_{};
  std::array<bool, kLaneCount> gated_{};

  // With compression alone: the first and the last command of a lane for each of its stream.
  struct Span {
    uint32_t first = 0;
    uint32_t last = 0;
  };
  std::array<std::vector<Span>, kStreamCount> spans_;
  std::map<Bytes, TensorId> owners_;      // of blocks of the host pool, by offset
  std::map<Bytes, uint32_t> compressed_;  // blocks kept compressed, and the command of the first
                                          // piece; 0 where an earlier iteration had it
  std::vector<uint32_t> landed_;          // of pieces decompressed: the commands of their copies
  CompressionTimes running_, compression_times_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
