// The device memory of a run: one arena, or ranges that come and go with the allocator's requests.
// The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_RUN_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_RUN_MEMORY_H_

#include <map>
#include <optional>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/page_memory.h"
#include "sim/core/allocator.h"

namespace spillway::cuda {

class RunMemory {
 public:
  // `size` is the size of the arena with `Backing::kArena`. Throws the errors of `DeviceBuffer` and
  // `PageMemory`.
  RunMemory(Backing backing, Bytes size);

  // Returns the memory of the block. REQUIRES: the device holds the whole block.
  DeviceRange At(const Block& block) const;

  // See `Backend`. With `Backing::kArena` these do nothing.
  void OnAllocate(const Block& block);
  void OnFree(const Block& block);
  void OnDriverCall(const DriverCall& call);

 private:
  const Backing backing_;
  DeviceBuffer arena_;
  std::map<Bytes, DeviceBuffer> segments_;  // by offset; one per block with `Backing::kBlocks`
  std::optional<PageMemory> pages_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_RUN_MEMORY_H_
