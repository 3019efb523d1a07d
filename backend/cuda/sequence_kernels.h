// Kernels for ops on sequences and for losses and updates: host functions that enqueue them on a
// stream.
//
// The rules of elementwise.h hold here too. A row is one position of one sample, and its elements
// lie side by side. Statistics and sums are float, whatever the type of the elements.

#ifndef SPILLWAY_BACKEND_CUDA_SEQUENCE_KERNELS_H_
#define SPILLWAY_BACKEND_CUDA_SEQUENCE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/elements.h"

namespace spillway::cuda {

// A gradient is written as out = alpha * gradient + beta * out.
struct GradientScale {
  float alpha = 1;
  float beta = 0;
};

// Memory for the partial sums of reductions over rows.
struct SumScratch {
  float* data = nullptr;
  int64_t floats = 0;
};

// The most features of a row in a normalisation.
inline constexpr int64_t kMostNormFeatures = 32768;

// An operand that may be left out has null data then.

// Computes y = weight * (x - mean) * inv_std + bias over each row. Without `bias`, as in RMS norm,
// the mean is taken as 0. `mean` and `inv_std` may be left out. REQUIRES: features <=
// kMostNormFeatures.
void Normalize(ConstElements x, ConstElements weight, ConstElements bias, Elements y, float* mean,
               float* inv_std, int64_t rows, int64_t features, float epsilon, cudaStream_t stream);
// Computes the gradients of `Normalize`. dx may be left out, and without a bias so are `mean` and
// dbias.
void NormalizeBackward(ConstElements x, ConstElements weight, ConstElements dy, const float* mean,
                       const float* inv_std, Elements dx, bool accumulate, Elements dweight,
                       Elements dbias, GradientScale scale, int64_t rows, int64_t features,
                       const SumScratch& scratch, cudaStream_t stream);

// Computes for each group g the sum over the samples and over the positions [g * span, (g + 1) *
// span) of each column: out[g] is a row. Positions at `length` and behind it do not exist.
void SumColumns(ConstElements in, int64_t samples, int64_t length, int64_t span, int64_t groups,
                int64_t columns, Elements out, GradientScale scale, const SumScratch& scratch,
                cudaStream_t stream);
// Computes y[row] += bias.
void AddBias(Elements y, ConstElements bias, int64_t rows, int64_t columns, cudaStream_t stream);

// Copies row tokens[i] of the table to row i of y. A token outside the vocabulary gives NaN.
void Embed(const int32_t* tokens, ConstElements table, Elements y, int64_t rows, int64_t vocabulary,
           int64_t features, cudaStream_t stream);
// Adds the rows of dy to the gradients of their words, in the order of the rows. Words without a
// row get the gradient 0.
void EmbedBackward(const int32_t* tokens, ConstElements dy, Elements dtable, GradientScale scale,
                   int64_t rows, int64_t vocabulary, int64_t features, cudaStream_t stream);

// Adds row t / span of the table to position t of each sample. With `token`, which may be left out,
// position 0 is the token, and x is a map [sample, feature, pixel] whose pixels are the positions
// from 1 on.
void EmbedPositions(ConstElements x, ConstElements table, ConstElements token, Elements y,
                    int64_t samples, int64_t length, int64_t features, int64_t span,
                    cudaStream_t stream);
// Computes dx of `EmbedPositions` with a class token.
void PixelGradients(ConstElements dy, Elements dx, bool accumulate, int64_t samples, int64_t length,
                    int64_t features, cudaStream_t stream);

// Turns features i and i + head_dim / 2 of each head at position t by t * theta^(-2i / head_dim),
// or back if `backward`.
void Rotate(ConstElements x, Elements y, bool backward, bool accumulate, int64_t samples,
            int64_t length, int64_t heads, int64_t head_dim, double theta, cudaStream_t stream);

// Computes the softmax of each row. If `causal`, row r has zeros behind its column r % columns and
// does not read x there.
void Softmax(ConstElements x, Elements y, int64_t rows, int64_t columns, bool causal,
             cudaStream_t stream);
// Computes dx = y * (dy - sum of dy * y).
void SoftmaxBackward(ConstElements y, ConstElements dy, Elements dx, bool accumulate, int64_t rows,
                     int64_t columns, bool causal, cudaStream_t stream);

// Computes loss = scale * sum over rows of -log(y[row, label]). Probabilities are clamped to at
// least FLT_MIN. A label that is no class gives NaN.
void CrossEntropy(ConstElements y, const int32_t* labels, float* loss, int64_t rows,
                  int64_t classes, float scale, bool accumulate, cudaStream_t stream);
// Computes dx = scale * (y - one_hot(label)).
void SoftmaxCrossEntropyBackward(ConstElements y, const int32_t* labels, Elements dx, int64_t rows,
                                 int64_t classes, float scale, cudaStream_t stream);

struct AdamRule {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  bool decay_apart;  // as in AdamW
};

// One parameter of an update. Each output may be the memory of its input. `next_copy`
// is the parameter in its own, shorter type, and is left out if it has none.
struct AdamParameter {
  const float* weight;
  ConstElements gradient;
  const float* first;
  const float* second;
  const float* step;
  float* next_weight;
  float* next_first;
  float* next_second;
  float* next_step;
  Elements next_copy;
  int64_t count;
};

// The most parameters of one call of `Adam`.
inline constexpr size_t kMostAdamParameters = 8;

// Updates parameters (Kingma and Ba 2015; with `decay_apart`, Loshchilov and Hutter 2019).
// REQUIRES: parameters.size() <= kMostAdamParameters.
void Adam(const AdamParameter* parameters, size_t count, const AdamRule& rule, cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_SEQUENCE_KERNELS_H_
