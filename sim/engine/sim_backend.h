// The simulator behind the seam: a backend that computes when each command would have run.
//
// The host enqueues one library call at a time, `launch_overhead` each; commands are collected
// until `Synchronize`, which plays them in one go. Nothing is executed and no memory is touched.

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
  // Both outlive the backend.
  SimBackend(const Device& device, const CostModel& cost)
      : device_(device), cost_(cost), links_(device) {}

  std::string_view Name() const override { return "sim"; }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override;
  Event Copy(Direction direction, const Block& device, const Block& host, Bytes size,
             std::span<const Wait> waits) override;
  void Synchronize() override;
  StreamTimes TakeTimeline() override;

 private:
  Event Add(Stream stream, Command command, std::span<const Wait> waits, size_t calls);

  const Device& device_;
  const CostModel& cost_;
  const Links links_;
  Program program_;
  StreamTimes times_;
  Duration host_now_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_SIM_BACKEND_H_
