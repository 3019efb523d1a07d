// Allocators by name.

#ifndef SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_
#define SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/allocator.h"

namespace spillway {

struct AllocatorInfo {
  std::string name;
  std::string description;
};

// All allocators, in the order in which they should be listed.
std::vector<AllocatorInfo> Allocators();

// Throws `UsageError` with a suggestion and the valid names.
std::unique_ptr<Allocator> MakeAllocator(std::string_view name, Bytes capacity, Bytes granularity);

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_
