// A range of device memory, a buffer that owns one, and a buffer of pinned host memory. The header
// includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <optional>
#include <utility>

#include "traces/base/units.h"
#include "traces/ops/data_type.h"

namespace spillway::cuda {

// The bytes [data, data + size) of device memory. Does not own them. `type` is that of the elements
// of an operand.
struct DeviceRange {
  std::byte* data = nullptr;
  Bytes size;
  DataType type = DataType::kFloat32;
};

// A range of device memory that is allocated by the constructor and freed by the destructor.
// Movable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws `Error` that names the requested and the free size if the device has too little memory
  // left.
  explicit DeviceBuffer(Bytes size);
  DeviceBuffer(DeviceBuffer&& other) noexcept : range_(std::exchange(other.range_, {})) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(range_, other.range_);
    return *this;
  }
  ~DeviceBuffer();

  // Returns a buffer, or nullopt if the device has too little memory left.
  static std::optional<DeviceBuffer> TryAllocate(Bytes size);

  const DeviceRange& range() const { return range_; }
  std::byte* data() const { return range_.data; }
  float* floats() const { return reinterpret_cast<float*>(range_.data); }
  Bytes size() const { return range_.size; }

 private:
  DeviceRange range_;
};

// Returns the free memory of the current device.
Bytes FreeDeviceMemory();

// A range of pinned host memory that is allocated by the constructor and freed by the destructor.
class PinnedBuffer {
 public:
  // Throws `Error` that names the size if the host cannot pin so much memory.
  explicit PinnedBuffer(Bytes size);
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
