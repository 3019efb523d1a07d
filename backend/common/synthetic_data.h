// Generates the contents of tensors that arrive from outside the program. Every backend gets the
// same bytes.

#ifndef SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_
#define SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "traces/trace.h"

namespace spillway::backend {

// Supplies real contents in place of synthetic data: writes the initial contents of the tensor and
// returns true, or returns false if it has none.
using GivenData = std::function<bool(TensorId, std::span<std::byte>)>;

enum class DataKind : uint8_t { kZero, kUniform, kLabels };

// A recipe for the elements of a tensor. Element i depends only on the recipe and on i
// (counter_random.h).
struct SyntheticData {
  DataKind kind = DataKind::kZero;
  uint64_t seed = 0;
  float scale = 0;  // kUniform: values lie in [centre - scale, centre + scale)
  float centre = 0;
  int32_t classes = 0;  // kLabels: labels lie in [0, classes)
  bool bf16 = false;    // kUniform: the values are rounded to bfloat16
};

// Chooses the recipe of each tensor of a trace:
// - Weights have variance 1 / fan-in. Biases are small but not zero, so that they affect results.
//   The scales of normalisations are near 1.
// - Optimizer state is 0, and running variances are 1. A master copy has the values of its
//   parameter before they were rounded.
// - Inputs differ between iterations. They are labels if a loss reads them as labels, tokens if an
//   embedding reads them, and otherwise uniform in [-1, 1).
// - A part of a tensor has the recipe of the whole tensor, so that it holds the same values as the
//   whole at its place.
class SyntheticSource {
 public:
  // REQUIRES: `trace` outlives the source.
  SyntheticSource(const Trace& trace, uint64_t seed);

  SyntheticData Of(TensorId tensor, uint64_t iteration) const;

 private:
  const Trace& trace_;
  const uint64_t seed_;
  // The keys are whole tensors: `scales_` holds the weights and running variances of
  // normalisations, `classes_` the number of classes of each tensor of labels or tokens, and
  // `copied_` the parameter of each master copy.
  std::unordered_set<TensorId> scales_;
  std::unordered_map<TensorId, int32_t> classes_;
  std::unordered_map<TensorId, TensorId> copied_;
};

// Fills `bytes` with fp32 or bf16 elements, or int32 elements for labels. The first element written
// is element `first` of the recipe. For labels and uniform values, trailing bytes that make no
// whole element are left unchanged.
void Fill(const SyntheticData& data, std::span<std::byte> bytes, int64_t first = 0);
// Returns the index in its recipe of a tensor's first element. It is 0 unless the tensor is a part
// of another one.
int64_t FirstElement(const Tensor& tensor);

}  // namespace spillway::backend

#endif  // SPILLWAY_BACKEND_COMMON_SYNTHETIC_DATA_H_
