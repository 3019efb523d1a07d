// A backend that forwards every call to another backend. Wrappers derive from it and override only
// the calls that they change.

#ifndef SPILLWAY_SIM_CORE_FORWARDING_BACKEND_H_
#define SPILLWAY_SIM_CORE_FORWARDING_BACKEND_H_

#include "sim/core/backend.h"

namespace spillway::sim {

class ForwardingBackend : public Backend {
 public:
  // `backend` outlives the wrapper.
  explicit ForwardingBackend(Backend& backend) : backend_(backend) {}

  std::string_view Name() const override { return backend_.Name(); }
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    return backend_.Enqueue(launch, waits);
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override {
    return backend_.Copy(pool, direction, device, outside, size, waits);
  }
  void Synchronize() override { backend_.Synchronize(); }
  StreamTimes TakeTimeline() override { return backend_.TakeTimeline(); }
  void OnAllocate(const Block& block) override { backend_.OnAllocate(block); }
  void OnFree(const Block& block) override { backend_.OnFree(block); }
  void OnDriverCall(const DriverCall& call) override { backend_.OnDriverCall(call); }
  void OnHostWork(Duration time) override { backend_.OnHostWork(time); }
  void OnAbandon(const Block& block, PoolId pool) override { backend_.OnAbandon(block, pool); }
  void OnOutsideBlock(TensorId tensor, const Block& block, PoolId pool) override {
    backend_.OnOutsideBlock(tensor, block, pool);
  }
  void OnArrive(TensorId tensor, const Block& block, PoolId pool) override {
    backend_.OnArrive(tensor, block, pool);
  }

 private:
  Backend& backend_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_FORWARDING_BACKEND_H_
