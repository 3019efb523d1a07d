// A range of real memory that an arena's offsets point into; pages are taken as they are touched.

#ifndef SPILLWAY_BACKEND_CPU_REGION_H_
#define SPILLWAY_BACKEND_CPU_REGION_H_

#include <cstddef>
#include <span>

#include "sim/core/allocator.h"
#include "sim/core/units.h"

namespace spillway {

class Region {
 public:
  // Reserves address space for `size` bytes, at most 1 TiB. Throws `EnvironmentError` if it cannot
  // be had.
  explicit Region(Bytes size);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // The bytes of a block. Throws `InputError` if it lies beyond the region.
  std::span<std::byte> At(const Block& block) const;

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_REGION_H_
