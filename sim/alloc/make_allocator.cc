#include "sim/alloc/make_allocator.h"

#include "sim/alloc/best_fit.h"
#include "sim/alloc/native.h"
#include "sim/core/error.h"

namespace spillway {

std::vector<AllocatorInfo> Allocators() {
  return {
      {"best-fit", "smallest free block that suffices, ties to the lowest offset"},
      {"native", "cudaMalloc and cudaFree for each block: no external fragmentation, but slow"}};
}

std::unique_ptr<Allocator> MakeAllocator(std::string_view name, Bytes capacity, Bytes granularity) {
  if (name == "best-fit") return std::make_unique<BestFit>(capacity, granularity);
  if (name == "native") return std::make_unique<Native>(capacity, granularity);
  std::vector<std::string> names;
  for (const AllocatorInfo& info : Allocators()) names.push_back(info.name);
  throw UsageError(UnknownName("allocator", name, names));
}

}  // namespace spillway
