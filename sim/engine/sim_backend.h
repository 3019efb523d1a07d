// The simulator: a backend that computes when each command would have run.
//
// The host enqueues one library call at a time, which takes `launch_overhead`. A call of the
// convolution library takes `library_call` if blocks are driver calls. Commands are collected until
// `Synchronize`, which plays them in one go. No command is executed and no memory is touched.
//
// Driver calls hold up the host. A call that gives memory back also waits until every issued
// command has ended, so later commands are played separately.

#ifndef SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
#define SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_

#include <memory>

#include "sim/core/backend.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/engine/issue_queue.h"
#include "sim/engine/sim_copy_path.h"

namespace spillway::sim {

// The charges that apply to some runs only.
struct SimCharges {
  // Each block is a driver call (`Backing::kBlocks`). Calls before the first command of an
  // iteration are not charged to it.
  bool driver = false;
  // Charges `Device::kernel_wait`.
  bool kernel_waits = false;
  // Charges memory that the arena takes from the driver as it grows. A steady iteration takes none.
  bool growth = true;
};

class SimBackend final : public Backend {
 public:
  // The device, the cost model and `compression` outlive the backend. If `compression` is nullptr,
  // the host pool is pinned memory.
  SimBackend(const Device& device, const CostModel& cost, SimCharges charges = {},
             const HostCompression* compression = nullptr);

  std::string_view Name() const override { return "sim"; }
  // `Enqueue`, `Copy`, `OnAllocate`, `OnFree` and `OnDriverCall` throw `InputError` if the host
  // would be busy for more than 53 days in an iteration.
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnAllocate(const Block& block) override;
  void OnFree(const Block& block) override;
  void OnDriverCall(const DriverCall& call) override;
  void OnHostWork(Duration time) override { queue_.Spend(time); }
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override;

  // Returns the compression times of the commands that `TakeTimeline` returned last.
  const CompressionTimes& compression_times() const { return compression_times_; }

 private:
  // Plays the commands issued since the last call.
  void Drain();
  // Holds up the host for a driver call.
  void Charge(const DriverCall& call);

  const Device& device_;
  const SimCharges charges_;
  IssueQueue queue_;
  const std::unique_ptr<SimCopyPath> copies_;
  CompressionTimes compression_times_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
