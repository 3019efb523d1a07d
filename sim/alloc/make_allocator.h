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

namespace spillway {

struct AllocatorInfo {
  std::string name;
  std::string description;
  std::vector<ParamInfo> parameters;
};

// All allocators, in the order in which they should be listed.
std::vector<AllocatorInfo> Allocators();

// `planned` is made for the run that it records, `auto` as best-fit: what they stand for is the
// business of experiments/run/resolve.h. `granularity` is what requests are rounded to where the
// specification does not say otherwise: a device's alignment. Throws `UsageError` with a suggestion
// and the valid names for an unknown name, parameter or value, and for a granularity that is not a
// multiple of the device's.
std::unique_ptr<ReplayableAllocator> MakeAllocator(std::string_view specification, Bytes capacity,
                                                   Bytes granularity);

// How many steps `planned` is to spend on its plan. Throws as above.
int64_t PlannedSteps(const Specification& specification);

// Whether `auto` is told to look for the fastest run instead of the smallest. Throws as above.
bool AutoByTime(const Specification& specification);

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_MAKE_ALLOCATOR_H_
