// The type bfloat16, as the backends store it.

#ifndef SPILLWAY_BACKEND_COMMON_BFLOAT16_H_
#define SPILLWAY_BACKEND_COMMON_BFLOAT16_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "traces/base/namespaces.h"

namespace spillway::backend {

// Returns the bits of the nearest bfloat16, to even if there are two.
inline uint16_t RoundToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace spillway::backend

#endif  // SPILLWAY_BACKEND_COMMON_BFLOAT16_H_
