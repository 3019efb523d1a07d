// The simulator behind the seam: a backend that computes when each command would have run.
//
// The host enqueues one library call at a time, `launch_overhead` each; those of the convolution
// library take `library_call` where blocks are calls of the driver. Commands are collected until
// `Synchronize`, which plays them in one go. Nothing is executed and no memory is touched.
// Calls of the driver hold up the host; those that give memory back wait besides until everything
// issued has ended: what follows is played on its own from there.

#ifndef SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
#define SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_

#include <memory>

#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/engine/issue_queue.h"
#include "sim/engine/sim_copy_path.h"

namespace spillway {

// What only some runs are charged for.
struct SimCharges {
  // Blocks are calls of the driver (`Backing::kBlocks`); those before an iteration's first command
  // are not part of it.
  bool driver = false;
  // `Device::kernel_wait`.
  bool kernel_waits = false;
  // Memory that the arena takes from the driver as it grows, which a steady iteration does not.
  bool growth = true;
};

class SimBackend final : public Backend {
 public:
  // Device and cost model outlive the backend, as `compression` does; nullptr: the host pool is
  // pinned memory.
  SimBackend(const Device& device, const CostModel& cost, SimCharges charges = {},
             const HostCompression* compression = nullptr);

  std::string_view Name() const override { return "sim"; }
  // These and `OnAllocate`, `OnFree` and `OnDriverCall` throw `InputError` if the host would be
  // busy for more than 53 days in an iteration.
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnAllocate(const Block& block) override;
  void OnFree(const Block& block) override;
  void OnDriverCall(const DriverCall& call) override;
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override;

  // Of the commands that `TakeTimeline` returned last.
  const CompressionTimes& compression_times() const { return compression_times_; }

 private:
  // Plays what has been issued since the last time.
  void Drain();
  // Holds up the host for a call of the driver.
  void Charge(const DriverCall& call);

  const Device& device_;
  const SimCharges charges_;
  IssueQueue queue_;
  const std::unique_ptr<SimCopyPath> copies_;
  CompressionTimes compression_times_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
