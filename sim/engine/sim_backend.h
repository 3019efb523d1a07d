// The simulator behind the seam: a backend that computes when each command would have run.
//
// The host enqueues one library call at a time, `launch_overhead` each; commands are collected
// until `Synchronize`, which plays them in one go. Nothing is executed and no memory is touched.
// Calls of the driver hold up the host; those that give memory back wait besides until everything
// issued has ended: what follows is played on its own from there.

#ifndef SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
#define SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_

#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/engine/links.h"
#include "sim/engine/schedule.h"

namespace spillway {

class SimBackend final : public Backend {
 public:
  // Device and cost model outlive the backend. `charge_driver`: blocks are calls of the driver
  // (`Backing::kBlocks`); those before an iteration's first command are not part of it.
  SimBackend(const Device& device, const CostModel& cost, bool charge_driver = false)
      : device_(device), cost_(cost), links_(device), charge_driver_(charge_driver) {}

  std::string_view Name() const override { return "sim"; }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;
  void OnAllocate(const Block& block) override;
  void OnFree(const Block& block) override;
  void OnDriverCall(const DriverCall& call) override;

 private:
  // Plays what has been issued since the last time.
  void Drain();
  // Holds up the host for a call of the driver.
  void Charge(DriverCall::Kind kind, Bytes size);
  bool begun() const { return host_now_ > Duration(); }
  Event Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls);

  const Device& device_;
  const CostModel& cost_;
  const Links links_;
  const bool charge_driver_;
  Program program_;
  StreamTimes times_;
  Duration host_now_;
  // Commands of each stream whose times are known, and when the last of them ended.
  std::array<uint32_t, kStreamCount> played_{};
  Duration drained_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
