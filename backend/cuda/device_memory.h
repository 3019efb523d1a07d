// Device memory, a range of it and a buffer that owns one, and pinned host memory. Includes no
// CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <optional>
#include <utility>

#include "traces/base/units.h"

namespace spillway {

// The bytes [data, data + size) of device memory, owned by somebody else.
struct DeviceRange {
  std::byte* data = nullptr;
  Bytes size;
};

// Device memory of its own, given back at the end of its life. Movable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws `Error` that names both sizes if the device has not that much memory left.
  explicit DeviceBuffer(Bytes size);
  DeviceBuffer(DeviceBuffer&& other) noexcept : range_(std::exchange(other.range_, {})) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(range_, other.range_);
    return *this;
  }
  ~DeviceBuffer();

  // nullopt if the device has not that much memory left.
  static std::optional<DeviceBuffer> TryAllocate(Bytes size);

  const DeviceRange& range() const { return range_; }
  std::byte* data() const { return range_.data; }
  float* floats() const { return reinterpret_cast<float*>(range_.data); }
  Bytes size() const { return range_.size; }

 private:
  DeviceRange range_;
};

// What the current device has left.
Bytes FreeDeviceMemory();

// Pinned host memory of its own, given back at the end of its life.
class PinnedBuffer {
 public:
  // Throws `Error` that names the size if the host has not that much memory to pin.
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

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
