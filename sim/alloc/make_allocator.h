// Allocators by name.
//
// A specification is NAME or NAME:key=value,key=value, for example "first-fit:granularity=1KiB".

#ifndef SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_
#define SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/replayable_allocator.h"
#include "traces/base/params.h"

namespace spillway::sim {

struct AllocatorInfo {
  std::string name;
  std::string description;
  std::vector<ParamInfo> parameters;
};

// Returns all allocators in the order in which they should be listed.
std::vector<AllocatorInfo> Allocators();
bool IsAllocator(std::string_view name);

// Makes an allocator from its specification. `granularity` is the unit to which requests are
// rounded up unless the specification sets another: a device's alignment. Throws `UsageError` with
// a suggestion and the valid names for an unknown name, parameter or value, and for a granularity
// that is not a multiple of `granularity`.
std::unique_ptr<ReplayableAllocator> MakeAllocator(const Specification& specification,
                                                   Bytes capacity, Bytes granularity);
std::unique_ptr<ReplayableAllocator> MakeAllocator(std::string_view specification, Bytes capacity,
                                                   Bytes granularity);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_
