// Kernels that limit the norm of all gradients together. The rules of elementwise.h hold here too.

#ifndef SPILLWAY_BACKEND_CUDA_GRADIENT_CLIP_H_
#define SPILLWAY_BACKEND_CUDA_GRADIENT_CLIP_H_

#include "backend/cuda/sequence_kernels.h"

namespace spillway::cuda {

// Sets `sum` to the sum of the squares of the elements, or adds it if `accumulate`.
void SumSquares(ConstElements in, int64_t count, float* sum, bool accumulate,
                const SumScratch& scratch, cudaStream_t stream);

// Scales the elements by max_norm / (sqrt(square_sum) + 1e-6), but by no more than 1. `square_sum`
// is one float in device memory. `out` may be `in`.
void ClipGradient(ConstElements in, const float* square_sum, float max_norm, Elements out,
                  int64_t count, cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_GRADIENT_CLIP_H_
