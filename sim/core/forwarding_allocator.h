// An allocator that forwards every call to another allocator. Wrappers derive from it and override
// only the calls that they change.

#ifndef SPILLWAY_SIM_CORE_FORWARDING_ALLOCATOR_H_
#define SPILLWAY_SIM_CORE_FORWARDING_ALLOCATOR_H_

#include "sim/core/allocator.h"

namespace spillway::sim {

class ForwardingAllocator : public Allocator {
 public:
  // `allocator` outlives the wrapper.
  explicit ForwardingAllocator(Allocator& allocator) : allocator_(allocator) {}

  std::string_view Name() const override { return allocator_.Name(); }
  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    return allocator_.Allocate(size, hint);
  }
  void UseStream(uint64_t stream) override { allocator_.UseStream(stream); }
  void Free(const Block& block) override { allocator_.Free(block); }
  MemoryStats Stats() const override { return allocator_.Stats(); }
  Bytes LargestFree(Hint hint) const override { return allocator_.LargestFree(hint); }
  Bytes Reserved() const override { return allocator_.Reserved(); }
  std::span<const DriverCall> driver_calls() const override { return allocator_.driver_calls(); }
  Backing backing() const override { return allocator_.backing(); }

 private:
  Allocator& allocator_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_FORWARDING_ALLOCATOR_H_
