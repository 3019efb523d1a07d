#include "experiments/run/setup.h"

#include "sim/alloc/make_allocator.h"

namespace spillway {

std::unique_ptr<Allocator> MakeArena(const Setup& setup, Bytes capacity) {
  if (setup.plan) return std::make_unique<Planned>(setup.plan, setup.device.alignment);
  return MakeAllocator(setup.allocator, capacity, setup.device.alignment);
}

}  // namespace spillway
