// Finds the class to which a network gives the highest probability, for each sample.

#ifndef SPILLWAY_BACKEND_COMMON_TOP1_H_
#define SPILLWAY_BACKEND_COMMON_TOP1_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::backend {

// Returns the class with the highest probability for each sample, the first such class if several
// are equal. `probabilities` holds `classes` values per sample, one sample after the other.
// REQUIRES: classes > 0, and `probabilities.size()` is a multiple of `classes`.
inline std::vector<int64_t> Top1(std::span<const float> probabilities, int64_t classes) {
  const auto count = static_cast<size_t>(classes);
  std::vector<int64_t> top1;
  for (size_t at = 0; at < probabilities.size(); at += count) {
    const auto sample = probabilities.subspan(at, count);
    top1.push_back(std::ranges::max_element(sample) - sample.begin());
  }
  return top1;
}

}  // namespace spillway::backend

#endif  // SPILLWAY_BACKEND_COMMON_TOP1_H_
