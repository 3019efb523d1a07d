#include "sim/core/cost_model.h"

#include "traces/base/error.h"

namespace spillway::sim {

uint32_t LeastWorkspace(std::span<const Kernel> kernels) {
  SPILLWAY_CHECK(!kernels.empty());
  uint32_t best = 0;
  for (uint32_t i = 1; i < kernels.size(); ++i) {
    if (kernels[i].workspace < kernels[best].workspace) best = i;
  }
  return best;
}

uint32_t FastestWithin(std::span<const Kernel> kernels, Bytes limit) {
  for (uint32_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].workspace <= limit) return i;
  }
  return LeastWorkspace(kernels);
}

}  // namespace spillway::sim
