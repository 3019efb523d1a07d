// An allocator that forwards requests to another one and logs the requests that succeed.

#ifndef SPILLWAY_SIM_ALLOC_RECORDING_ALLOCATOR_H_
#define SPILLWAY_SIM_ALLOC_RECORDING_ALLOCATOR_H_

#include <map>

#include "sim/core/forwarding_allocator.h"
#include "sim/packing/allocation_log.h"
#include "traces/base/error.h"

namespace spillway::sim {

class RecordingAllocator final : public ForwardingAllocator {
 public:
  using ForwardingAllocator::ForwardingAllocator;

  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    const auto block = ForwardingAllocator::Allocate(size, hint);
    if (block) live_[block->offset] = log_.Allocate(size, hint);
    return block;
  }
  void Free(const Block& block) override {
    const auto found = live_.find(block.offset);
    SPILLWAY_CHECK(found != live_.end());
    log_.Free(found->second);
    live_.erase(found);
    ForwardingAllocator::Free(block);
  }

  const AllocationLog& log() const { return log_; }

 private:
  AllocationLog log_;
  std::map<Bytes, uint32_t> live_;  // by offset
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_RECORDING_ALLOCATOR_H_
