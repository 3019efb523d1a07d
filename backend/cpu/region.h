// A range of real memory that an arena's offsets point into. The system allocates its pages when
// they are first touched.
//
// Parts of the range can become windows onto a second memory, and several windows may show the same
// part of that memory. This imitates a GPU's page tables.

#ifndef SPILLWAY_BACKEND_CPU_REGION_H_
#define SPILLWAY_BACKEND_CPU_REGION_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "sim/core/allocator.h"
#include "traces/base/units.h"

namespace spillway::cpu {

class Region {
 public:
  // Reserves address space for `size` bytes, at most 1 TiB. Throws `EnvironmentError` if the system
  // refuses.
  explicit Region(Bytes size);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Makes `addresses` show the bytes of the second memory from offset `memory` on. The previous
  // contents of the addresses are lost. REQUIRES: offsets and size are multiples of 4 KiB. Throws
  // `InputError` if the addresses lie beyond the region, `EnvironmentError` if the system refuses.
  void Map(const Block& addresses, Bytes memory);

  // Returns the bytes of a block. Throws `InputError` if it lies beyond the region.
  std::span<std::byte> At(const Block& block) const;

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
  int memory_ = -1;  // file descriptor of the second memory, -1 before the first `Map`
  Bytes memory_size_;
};

// Returns true iff the blocks have a byte in common.
inline bool Overlap(const Block& a, const Block& b) {
  return a.offset < b.end() && b.offset < a.end();
}

// Sets all bits, which makes every float element a NaN.
inline void Poison(std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xff}); }

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_REGION_H_
