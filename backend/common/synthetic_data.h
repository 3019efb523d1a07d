// What tensors hold when they arrive from outside: the same bytes on every backend.

#ifndef SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_
#define SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "traces/trace.h"

namespace spillway {

// Contents in place of synthetic ones: writes what a tensor starts with, and says true; or false.
using GivenData = std::function<bool(TensorId, std::span<std::byte>)>;

enum class DataKind : uint8_t { kZero, kUniform, kLabels };

// A recipe: element i is a function of it and of i alone (counter_random.h).
struct SyntheticData {
  DataKind kind = DataKind::kZero;
  uint64_t seed = 0;
  float scale = 0;  // kUniform: in [centre - scale, centre + scale)
  float centre = 0;
  int32_t classes = 0;  // kLabels: in [0, classes)
};

// The recipes of a trace's tensors. A part of a tensor holds what the whole would there: its recipe
// is the whole's.
// Parameters: weights of variance 1 / fan-in, small biases that are not zero, so that they matter,
// scales of batch normalisations near 1. Optimizer state: zero, running variances 1. Inputs differ
// from iteration to iteration: labels where a loss reads them as such, else uniform in [-1, 1).
class SyntheticSource {
 public:
  // REQUIRES: `trace` outlives the source.
  SyntheticSource(const Trace& trace, uint64_t seed);

  SyntheticData Of(TensorId tensor, uint64_t iteration) const;

 private:
  const Trace& trace_;
  const uint64_t seed_;
  // Weights and running variances of batch normalisations, and the labels of losses, whole.
  std::unordered_set<TensorId> scales_;
  std::unordered_map<TensorId, int32_t> classes_;
};

// Fills fp32 elements, or int32 for labels, the first of which is element `first`; a rest that is
// no whole element is left as it is.
void Fill(const SyntheticData& data, std::span<std::byte> bytes, int64_t first = 0);
// The first element of a tensor in its recipe: not 0 in a part.
int64_t FirstElement(const Tensor& tensor);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_
