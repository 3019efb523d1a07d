#include "policies/lifetimes.h"

#include <algorithm>

namespace spillway {

std::vector<std::vector<TensorId>> ColourLifetimes(const std::vector<TensorId>& storages,
                                                   const Liveness& liveness) {
  std::vector<TensorId> by_start = storages;
  std::stable_sort(by_start.begin(), by_start.end(), [&](TensorId a, TensorId b) {
    return liveness.FirstUse(a) < liveness.FirstUse(b);
  });
  std::vector<std::vector<TensorId>> colours;
  for (const TensorId id : by_start) {
    const auto ended_before = [&](const std::vector<TensorId>& colour) {
      return liveness.LastUse(colour.back()) < liveness.FirstUse(id);
    };
    const auto free = std::find_if(colours.begin(), colours.end(), ended_before);
    if (free == colours.end()) {
      colours.push_back({id});
    } else {
      free->push_back(id);
    }
  }
  return colours;
}

}  // namespace spillway
