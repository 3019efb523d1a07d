#include "backend/cuda/device_memory.h"

#include <fmt/format.h>

#include "backend/cuda/cuda_error.h"
#include "traces/base/error.h"

namespace spillway::cuda {

DeviceBuffer::DeviceBuffer(Bytes size) {
  std::optional<DeviceBuffer> buffer = TryAllocate(size);
  if (!buffer) {
    size_t free = 0;
    size_t total = 0;
    SPILLWAY_CUDA_CALL(cudaMemGetInfo(&free, &total));
    throw Error(fmt::format("out of device memory: {} asked for, {} free of {}", FormatBytes(size),
                            FormatBytes(Bytes(static_cast<int64_t>(free))),
                            FormatBytes(Bytes(static_cast<int64_t>(total)))));
  }
  std::swap(range_, buffer->range_);
}

DeviceBuffer::~DeviceBuffer() {
  // A failed cudaFree has one of two causes. The error is sticky, and the next call reports it, or
  // the process is ending.
  if (range_.data != nullptr) static_cast<void>(cudaFree(range_.data));
}

std::optional<DeviceBuffer> DeviceBuffer::TryAllocate(Bytes size) {
  DeviceBuffer buffer;
  if (size <= Bytes(0)) return buffer;
  const cudaError_t code =
      cudaMalloc(reinterpret_cast<void**>(&buffer.range_.data), static_cast<size_t>(size.count()));
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the error is not sticky: clears it for the next check
    return std::nullopt;
  }
  CheckCuda(code, "cudaMalloc");
  buffer.range_.size = size;
  return buffer;
}

Bytes FreeDeviceMemory() {
  size_t free = 0;
  size_t total = 0;
  SPILLWAY_CUDA_CALL(cudaMemGetInfo(&free, &total));
  return Bytes(static_cast<int64_t>(free));
}

PinnedBuffer::PinnedBuffer(Bytes size) : size_(size) {
  const cudaError_t code =
      cudaMallocHost(reinterpret_cast<void**>(&data_), static_cast<size_t>(size.count()));
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the error is not sticky: clears it for the next check
    throw Error(fmt::format("out of host memory: cannot pin {}", FormatBytes(size)));
  }
  CheckCuda(code, "cudaMallocHost");
}

PinnedBuffer::~PinnedBuffer() {
  // A failed cudaFreeHost has the same two causes as a failed cudaFree.
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}

}  // namespace spillway::cuda
