#include "backend/cpu/stand_in.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace spillway::cpu {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull;

// A bijection that spreads each bit of `value` over all bits of the result.
uint64_t Spread(uint64_t value) {
  value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93ull;
  value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93ull;
  return value ^ (value >> 32);
}

}  // namespace

uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t hash = Spread(seed + kOdd * bytes.size());
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = std::rotl((hash ^ word) * kOdd, 29);
  }
  return Spread(hash);
}

uint64_t RunStandIn(uint64_t seed, std::span<const std::span<std::byte>> inputs,
                    std::span<const std::span<std::byte>> outputs) {
  uint64_t hash = Spread(seed);
  for (const auto& input : inputs) hash = HashBytes(input, hash);
  const uint64_t read = hash;
  for (const auto& output : outputs) {
    hash = Spread(hash + 1);
    uint64_t word = hash;
    for (size_t at = 0; at < output.size(); at += sizeof(word)) {
      word = word * kOdd + 1;
      std::memcpy(output.data() + at, &word, std::min(sizeof(word), output.size() - at));
    }
  }
  return read;
}

}  // namespace spillway::cpu
