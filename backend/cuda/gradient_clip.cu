#include "backend/cuda/gradient_clip.h"

#include "backend/cuda/device_elements.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kLeastShare = int64_t{1} << 14;  // elements that keep a block busy
constexpr int64_t kMostShares = 1024;

// Block b sums the squares of share b.
template <int kWidth>
__global__ void SquareSharesKernel(ConstElements in, int64_t count, int64_t share, float* sums) {
  const int64_t begin = blockIdx.x * share, end = min(begin + share, count);
  float sum = 0;
  for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += blockDim.x * kWidth) {
    if (i + kWidth <= end) {
      const Pack<kWidth> pack = Load<kWidth>(in, i);
      for (int k = 0; k < kWidth; ++k) sum += pack[k] * pack[k];
    } else {
      for (int64_t j = i; j < end; ++j) sum += LoadOne(in, j) * LoadOne(in, j);
    }
  }
  sum = BlockReduce<Sum>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void AddSharesKernel(const float* sums, int64_t count, float* out, bool accumulate) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += sums[i];
  sum = BlockReduce<Sum>(sum);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

struct ClipFunction {
  ConstElements in;
  const float* square_sum;
  float max_norm;
  Elements out;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const float wanted = max_norm / (sqrtf(*square_sum) + 1e-6f);
    const float factor = wanted > 1 ? 1 : wanted;  // NaN stays
    const Pack<kWidth> value = Load<kWidth>(in, i);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = value[k] * factor;
    Store(out, i, floats);
  }
};

}  // namespace

void SumSquares(ConstElements in, int64_t count, float* sum, bool accumulate,
                const SumScratch& scratch, cudaStream_t stream) {
  const int64_t shares =
      std::clamp<int64_t>(count / kLeastShare, 1, std::min(kMostShares, scratch.floats));
  const int64_t share = ((count + shares - 1) / shares + 3) / 4 * 4;
  const auto blocks = static_cast<unsigned>(shares);
  if (Aligned({in})) {
    SquareSharesKernel<4><<<blocks, kThreads, 0, stream>>>(in, count, share, scratch.data);
  } else {
    SquareSharesKernel<1><<<blocks, kThreads, 0, stream>>>(in, count, share, scratch.data);
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
  AddSharesKernel<<<1, kThreads, 0, stream>>>(scratch.data, shares, sum, accumulate);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void ClipGradient(ConstElements in, const float* square_sum, float max_norm, Elements out,
                  int64_t count, cudaStream_t stream) {
  ForEach(count, {in, out}, /*wide=*/true, ClipFunction{in, square_sum, max_norm, out}, stream);
}

}  // namespace spillway::cuda
