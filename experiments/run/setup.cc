#include "experiments/run/setup.h"

#include <utility>

#include "sim/alloc/make_allocator.h"

namespace spillway {

std::shared_ptr<const Trace> Rewritten(const Setup& setup, Policy& policy) {
  auto rewritten = policy.Rewrite(*setup.trace, setup.device, *setup.cost);
  if (!rewritten) return setup.trace;
  rewritten->Validate();
  return std::make_shared<const Trace>(*std::move(rewritten));
}

std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity) {
  if (setup.plan) return std::make_unique<Planned>(setup.plan, setup.device.alignment);
  return MakeAllocator(setup.allocator, capacity, setup.device.alignment);
}

}  // namespace spillway
