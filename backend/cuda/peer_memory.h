// A pool outside the device in the memory of another GPU of this machine. Copies reach it over
// NVLink or PCIe.

#ifndef SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "backend/cuda/cuda_error.h"
#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"

namespace spillway::cuda {

// Returns true if `device` can reach the memory of `peer` directly; otherwise copies are staged
// through the host. Throws `EnvironmentError` if either GPU does not exist.
bool ReachesPeer(int device, int peer);

class PeerMemory {
 public:
  // Allocates `size` bytes on `peer`. `device` is the current device before and after the call.
  // Throws `UsageError` if both are the same GPU and `EnvironmentError` if either does not exist.
  // Throws `Error` that names the sizes if `peer` has too little memory left.
  PeerMemory(int device, int peer, Bytes size);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  // Enqueues a copy of block.size bytes on a stream of the device.
  void Copy(Direction direction, std::byte* device, const Block& block, cudaStream_t stream,
            const Activity& activity) const;
  // Copy bytes between the host and a block. REQUIRES: nothing is pending.
  void Write(const Block& block, std::span<const std::byte> bytes) const;
  void Read(const Block& block, std::span<std::byte> bytes) const;

 private:
  std::byte* At(const Block& block) const;

  const int device_;
  const int peer_;
  const Bytes size_;
  std::byte* data_ = nullptr;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_PEER_MEMORY_H_
