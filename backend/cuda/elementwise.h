// The small kernels that cuDNN and cuBLAS lack, as host functions that enqueue them on a stream.
//
// All pointers are device pointers to dense elements (int32 for labels), and counts are in
// elements. No function waits for the device. Unless a comment says otherwise, operands may be the
// same memory (in-place operation) but must not overlap in part. `accumulate` adds to the output
// instead of overwriting it. Each function throws `Error` if the launch fails. Results are
// deterministic.

#ifndef SPILLWAY_BACKEND_CUDA_ELEMENTWISE_H_
#define SPILLWAY_BACKEND_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "backend/cuda/elements.h"

namespace spillway::cuda {

// Fill `out` with `centre` plus `RandomFloat`, or with `RandomLabel`, of
// traces/base/counter_random.h. The number of the first element is `first` in `FillUniform` and 0
// in `FillLabels`.
void FillUniform(Elements out, int64_t count, uint64_t seed, float scale, cudaStream_t stream,
                 float centre = 0, int64_t first = 0);
void FillLabels(int32_t* out, int64_t count, int32_t classes, uint64_t seed, cudaStream_t stream);

// Computes y = f(x), where f is the activation of the op type with this name. NaN stays NaN.
// REQUIRES: the op type is an activation.
void Activate(std::string_view type, ConstElements x, Elements y, int64_t count,
              cudaStream_t stream);
// Computes dx = f'(x) dy. `saved` is the operand that backward reads by the op table: x or y.
void ActivateBackward(std::string_view type, ConstElements saved, ConstElements dy, Elements dx,
                      int64_t count, bool accumulate, cudaStream_t stream);

// Computes y = a + b.
void AddTensors(ConstElements a, ConstElements b, Elements y, int64_t count, cudaStream_t stream);
// Computes y = a * b.
void MultiplyTensors(ConstElements a, ConstElements b, Elements y, int64_t count,
                     cudaStream_t stream);
// Computes da = dy * b and db = dy * a.
void MultiplyBackward(ConstElements a, ConstElements b, ConstElements dy, Elements da, Elements db,
                      int64_t count, bool accumulate_a, bool accumulate_b, cudaStream_t stream);

// Copies `rows` rows of `length` elements. Strides are the distances between row starts, in
// elements.
void CopyRows(ConstElements from, int64_t from_stride, Elements to, int64_t to_stride,
              int64_t length, int64_t rows, bool accumulate, cudaStream_t stream);

// Computes y[i] = x[i] / (1 - ratio) if `DropoutKeeps(seed, layer, first + i, ratio)`, otherwise 0.
// The backward step is the same function on gradients.
void Dropout(ConstElements x, Elements y, int64_t count, int64_t first, uint64_t seed,
             uint32_t layer, float ratio, bool accumulate, cudaStream_t stream);

// Computes m = momentum * m + (dw + weight_decay * w); w -= learning_rate * m.
void SgdMomentum(Elements weight, ConstElements gradient, Elements momentum, int64_t count,
                 float learning_rate, float momentum_factor, float weight_decay,
                 cudaStream_t stream);

// The largest window, in channels, of `LrnBackwardInPlace`.
inline constexpr int kLargestLrnWindow = 16;
// Computes the backward step of a local response normalisation like `DnnLibrary::LrnBackward`, but
// overwrites dy with dx. Planes have `plane` elements. REQUIRES: size <= kLargestLrnWindow.
void LrnBackwardInPlace(const float* x, const float* y, float* dy, int64_t batch, int channels,
                        int64_t plane, int size, float alpha, float beta, float k,
                        cudaStream_t stream);

// The result of `Compare`, in device memory.
struct Comparison {
  uint32_t largest_bits = 0;     // bits of max |a|
  uint32_t difference_bits = 0;  // bits of max |a - b|
  uint32_t not_finite = 0;       // 1 if a holds a NaN or an infinity
};
// Compares two arrays and overwrites `result`. If the data of `b` are null, only `a` is examined.
void Compare(ConstElements a, ConstElements b, int64_t count, Comparison* result,
             cudaStream_t stream);

// Keeps the stream busy for about `nanoseconds`, while the host enqueues the work that is to be
// timed.
void Spin(int64_t nanoseconds, cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_ELEMENTWISE_H_
