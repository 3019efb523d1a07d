#include "tests/testing/mixing.h"

#include "backend/cpu/stand_in.h"

namespace spillway::testing {

void MixingOps::Run(const Op& op, std::span<const std::span<std::byte>> inputs,
                    std::span<const std::span<std::byte>> outputs, uint64_t seed) {
  const auto index = static_cast<size_t>(&op - trace_.ops.data());
  const uint64_t hash = RunStandIn(seed + index, inputs, outputs);
  auto& read = read_[index];
  if (read.empty() || read.back() != hash) read.push_back(hash);
}

}  // namespace spillway::testing
