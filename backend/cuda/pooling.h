// Max and average pooling kernels that take the output size as given. They support ceil-mode
// outputs, which cuDNN's symmetric padding cannot express.
//
// Tensors are dense NCHW on the device, and all float or all bfloat16. A window is clipped to the
// input. Backward gathers without atomics, so results are deterministic. The first maximum of a
// window, in row-major order, takes the gradient. The divisor of average pooling counts the
// declared padding, but not the part of a ceil-mode window beyond it (PyTorch's
// count_include_pad=True). No operand may alias another.

#ifndef SPILLWAY_BACKEND_CUDA_POOLING_H_
#define SPILLWAY_BACKEND_CUDA_POOLING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/elements.h"

namespace spillway::cuda {

struct PoolShape {
  int64_t planes = 0;  // samples times channels
  int in_height = 0, in_width = 0;
  int out_height = 0, out_width = 0;
  int kernel_h = 0, kernel_w = 0;
  int stride_h = 0, stride_w = 0;
  int pad_h = 0, pad_w = 0;
};

void MaxPool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream);
void MaxPoolBackward(const PoolShape& shape, ConstElements x, ConstElements y, ConstElements dy,
                     Elements dx, bool accumulate, cudaStream_t stream);
void AveragePool(const PoolShape& shape, ConstElements x, Elements y, cudaStream_t stream);
void AveragePoolBackward(const PoolShape& shape, ConstElements dy, Elements dx, bool accumulate,
                         cudaStream_t stream);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_POOLING_H_
