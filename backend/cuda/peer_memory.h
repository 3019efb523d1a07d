// Memory of another GPU of this machine, which copies reach over NVLink or PCIe: a pool outside.

#ifndef SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "backend/cuda/cuda_error.h"
#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"

namespace spillway {

// Whether `device` can reach the memory of `peer` by itself; otherwise copies are staged through
// the host. Throws `EnvironmentError` if there is no such GPU.
bool ReachesPeer(int device, int peer);

class PeerMemory {
 public:
  // Leaves `device` the current one. Throws `UsageError` if they are the same, `EnvironmentError`
  // if there is no such GPU, `Error` that names the sizes if it has not that much memory left.
  PeerMemory(int device, int peer, Bytes size);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  // Enqueues the copy of block.size bytes on a stream of the device.
  void Copy(Direction direction, std::byte* device, const Block& block, cudaStream_t stream,
            const Activity& activity) const;
  // REQUIRES: nothing is pending.
  void Write(const Block& block, std::span<const std::byte> bytes) const;
  void Read(const Block& block, std::span<std::byte> bytes) const;

 private:
  std::byte* At(const Block& block) const;

  const int device_;
  const int peer_;
  const Bytes size_;
  std::byte* data_ = nullptr;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_
