// A range of real memory that an arena's offsets point into; pages are taken as they are touched.
//
// Parts of it can be made windows onto a second memory, the same part of which may be seen through
// several windows: what a GPU's page tables do.

#ifndef SPILLWAY_BACKEND_CPU_REGION_H_
#define SPILLWAY_BACKEND_CPU_REGION_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "sim/core/allocator.h"
#include "traces/base/units.h"

namespace spillway {

class Region {
 public:
  // Reserves address space for `size` bytes, at most 1 TiB. Throws `EnvironmentError` if it cannot
  // be had.
  explicit Region(Bytes size);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // From now on the addresses show `memory` bytes of the second memory and what follows them; what
  // they held is lost. REQUIRES: offsets and size are multiples of 4 KiB. Throws `InputError` if
  // the addresses lie beyond the region, `EnvironmentError` if the system refuses.
  void Map(const Block& addresses, Bytes memory);

  // The bytes of a block. Throws `InputError` if it lies beyond the region.
  std::span<std::byte> At(const Block& block) const;

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
  int memory_ = -1;  // file descriptor of the second memory, -1 before the first `Map`
  Bytes memory_size_;
};

// Whether the blocks have a byte in common.
inline bool Overlap(const Block& a, const Block& b) {
  return a.offset < b.end() && b.offset < a.end();
}

// All bits set: a NaN in every element.
inline void Poison(std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xff}); }

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_REGION_H_
