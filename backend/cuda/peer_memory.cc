#include "backend/cuda/peer_memory.h"

#include <fmt/format.h>

#include "backend/cuda/device_memory.h"
#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// Makes `device` the current device, and `back` again when it is destroyed.
class ScopedDevice {
 public:
  ScopedDevice(int device, int back) : back_(back) { SPILLWAY_CUDA_CALL(cudaSetDevice(device)); }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;
  ~ScopedDevice() { static_cast<void>(cudaSetDevice(back_)); }

 private:
  const int back_;
};

// Allows the current device to reach the memory of `other`.
void EnablePeer(int other) {
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());  // the error is not sticky: clears it for the next check
    return;
  }
  CheckCuda(code, "cudaDeviceEnablePeerAccess");
}

}  // namespace

bool ReachesPeer(int device, int peer) {
  RequireDevice(device);
  RequireDevice(peer);
  int reaches = 0;
  SPILLWAY_CUDA_CALL(cudaDeviceCanAccessPeer(&reaches, device, peer));
  return reaches != 0;
}

PeerMemory::PeerMemory(int device, int peer, Bytes size)
    : device_(device), peer_(peer), size_(size) {
  if (device == peer) {
    throw UsageError(
        fmt::format("GPU {} runs the kernels, so it cannot be the peer as well", device));
  }
  const bool reaches = ReachesPeer(device, peer);
  if (size > Bytes(0)) {
    const ScopedDevice scope(peer, device);
    const cudaError_t code =
        cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(size.count()));
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw Error(fmt::format("out of memory on GPU {}: {} asked for, {} free", peer,
                              FormatBytes(size), FormatBytes(FreeDeviceMemory())));
    }
    CheckCuda(code, "cudaMalloc");
    if (reaches) EnablePeer(device);
  }
  if (reaches) EnablePeer(peer);
}

PeerMemory::~PeerMemory() {
  // A failed cudaFree has one of two causes. The error is sticky, and the next call reports it, or
  // the process is ending.
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

std::byte* PeerMemory::At(const Block& block) const {
  SPILLWAY_CHECK(block.end() <= size_);
  return data_ + block.offset.count();
}

void PeerMemory::Copy(Direction direction, std::byte* device, const Block& block,
                      cudaStream_t stream, const Activity& activity) const {
  const auto size = static_cast<size_t>(block.size.count());
  if (direction == Direction::kToHost) {
    SPILLWAY_CUDA_CALL(cudaMemcpyPeerAsync(At(block), peer_, device, device_, size, stream),
                       activity);
  } else {
    SPILLWAY_CUDA_CALL(cudaMemcpyPeerAsync(device, device_, At(block), peer_, size, stream),
                       activity);
  }
}

void PeerMemory::Write(const Block& block, std::span<const std::byte> bytes) const {
  SPILLWAY_CUDA_CALL(cudaMemcpy(At(block), bytes.data(), bytes.size(), cudaMemcpyDefault));
}

void PeerMemory::Read(const Block& block, std::span<std::byte> bytes) const {
  const Block contents{block.offset, Bytes(static_cast<int64_t>(bytes.size()))};
  SPILLWAY_CUDA_CALL(cudaMemcpy(bytes.data(), At(contents), bytes.size(), cudaMemcpyDefault));
}

}  // namespace spillway::cuda
