// Counter-based random numbers for every backend: Philox4x32-10, a pure function of key and
// counter.
//
// J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
// Forward and backward ops draw the same dropout mask without storing one. The numbers do not
// depend on the order of the draws, on the split of the batch, or on CPU or GPU. This header
// compiles as C++17, for host and device.

#ifndef SPILLWAY_TRACES_BASE_COUNTER_RANDOM_H_
#define SPILLWAY_TRACES_BASE_COUNTER_RANDOM_H_

#include <cstdint>

#ifdef __CUDACC__
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

#include "traces/base/namespaces.h"

namespace spillway::traces {

struct Philox4 {
  uint32_t word[4];
};

// Returns four independent words for the 128-bit counter {c0, c1, c2, c3}.
SPILLWAY_HOST_DEVICE constexpr Philox4 Philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                              uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Returns the four words for elements 4 * group .. 4 * group + 3 of sequence `stream`.
SPILLWAY_HOST_DEVICE constexpr Philox4 PhiloxGroup(uint64_t seed, uint32_t stream, int64_t group) {
  return Philox(seed, static_cast<uint32_t>(group),
                static_cast<uint32_t>(static_cast<uint64_t>(group) >> 32), stream, 0);
}

// Maps the upper 24 bits of a word to a number in [0, 1).
SPILLWAY_HOST_DEVICE constexpr float UnitFloat(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Returns true iff dropout with this ratio keeps element `element` of layer `layer`.
SPILLWAY_HOST_DEVICE constexpr bool DropoutKeeps(uint64_t seed, uint32_t layer, int64_t element,
                                                 float ratio) {
  return UnitFloat(PhiloxGroup(seed, layer, element / 4).word[element % 4]) >= ratio;
}

// Returns element `element` of a sequence that is uniform in [-scale, scale). Host and device
// return the same bits, because only the product is rounded.
SPILLWAY_HOST_DEVICE constexpr float RandomFloat(uint64_t seed, int64_t element, float scale) {
  return scale * (2 * UnitFloat(PhiloxGroup(seed, 0, element / 4).word[element % 4]) - 1);
}

// Returns element `element` of a sequence of labels in [0, classes).
SPILLWAY_HOST_DEVICE constexpr int32_t RandomLabel(uint64_t seed, int64_t element,
                                                   int32_t classes) {
  return static_cast<int32_t>(PhiloxGroup(seed, 1, element).word[0] %
                              static_cast<uint32_t>(classes));
}

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_COUNTER_RANDOM_H_
