// Lets kernels that compute in float run on operands that are stored in bfloat16.

#ifndef SPILLWAY_BACKEND_CPU_WIDENED_OPERANDS_H_
#define SPILLWAY_BACKEND_CPU_WIDENED_OPERANDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "backend/common/bfloat16.h"

namespace spillway::cpu {

// Copies in float of the operands of one op that are stored in bfloat16. An operand that is both an
// input and an output has one copy.
class WidenedOperands {
 public:
  // Returns the copy of an operand. The first call makes it.
  std::span<std::byte> Of(std::span<std::byte> stored) {
    const auto [at, is_new] = copies_.try_emplace(stored.data(), stored.size() / sizeof(uint16_t));
    std::vector<float>& copy = at->second;
    for (size_t i = 0; is_new && i < copy.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, stored.data() + i * sizeof(bits), sizeof(bits));
      copy[i] = std::bit_cast<float>(uint32_t{bits} << 16);
    }
    return std::as_writable_bytes(std::span(copy));
  }

  // Rounds the copy of an output and stores it.
  void Store(std::span<std::byte> stored) const {
    const std::vector<float>& copy = copies_.at(stored.data());
    for (size_t i = 0; i < copy.size(); ++i) {
      const uint16_t bits = RoundToBfloat16(copy[i]);
      std::memcpy(stored.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
  }

 private:
  std::map<std::byte*, std::vector<float>> copies_;  // by the place of the operand
};

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_WIDENED_OPERANDS_H_
