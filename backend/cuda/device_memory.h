// Device memory: a range of it, and a buffer that owns one. Includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
#define SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <optional>
#include <utility>

#include "sim/core/units.h"

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

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_DEVICE_MEMORY_H_
