#include "backend/cuda/sequence_kernels.h"

#include <algorithm>

#include "backend/cuda/device_rows.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kSumBlocks = 132 * 8;  // more blocks are not needed to keep an H100 busy
constexpr unsigned kSumColumns = 128;    // columns of a block, four of each thread
constexpr unsigned kMostSumRows = 32;    // rows that a block reads at a time

struct SumColumnsCall {
  ConstElements in;
  int64_t samples, length, span, columns;
  int64_t rows_per_block;
  // The sums of a block are a row of `out`, or of `partial` if that is not null.
  float* partial;
  Elements out;
  GradientScale scale;
  bool wide;
};

// Block (c, g, s) sums some columns over part s of the rows of group g.
__global__ void SumColumnsKernel(SumColumnsCall call) {
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x * 4;
  const int64_t begin = min(int64_t{blockIdx.y} * call.span, call.length);
  const int64_t inner = min(call.span, call.length - begin);  // rows of one sample
  const int64_t from = blockIdx.z * call.rows_per_block;
  const int64_t to = min(from + call.rows_per_block, call.samples * inner);
  Floats<4> sum{};
  if (column < call.columns) {
#pragma unroll 4
    for (int64_t r = from + threadIdx.y; r < to; r += blockDim.y) {
      const int64_t sample = call.samples == 1 ? 0 : Quotient(r, inner);
      const int64_t row = sample * call.length + begin + r - sample * inner;
      const Floats<4> part =
          RowPart{row * call.columns, call.columns, call.wide}.Get(call.in, column);
      for (int k = 0; k < 4; ++k) sum.v[k] += part.v[k];
    }
  }
  __shared__ Floats<4> shared[kMostSumRows][kSumColumns / 4];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (unsigned y = 1; y < blockDim.y; ++y) {
    for (int k = 0; k < 4; ++k) sum.v[k] += shared[y][threadIdx.x].v[k];
  }
  const int64_t group = blockIdx.y;
  const bool last = call.partial == nullptr;
  const int64_t at = last ? group : group * gridDim.z + blockIdx.z;
  for (int k = 0; k < 4 && column + k < call.columns; ++k) {
    const int64_t i = at * call.columns + column + k;
    if (!last) {
      call.partial[i] = sum.v[k];
    } else {
      const float old = call.scale.beta == 0 ? 0 : call.scale.beta * LoadOne(call.out, i);
      StoreOne(call.out, i, call.scale.alpha * sum.v[k] + old);
    }
  }
}

void LaunchSumColumns(const SumColumnsCall& call, int64_t groups, int64_t parts,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((call.columns + kSumColumns - 1) / kSumColumns),
                  static_cast<unsigned>(groups), static_cast<unsigned>(parts));
  // The last sums have few blocks, so each needs many threads.
  const int64_t most = call.partial == nullptr ? kMostSumRows : kMostSumRows / 4;
  const auto rows = static_cast<unsigned>(std::clamp<int64_t>(call.rows_per_block / 4, 1, most));
  SumColumnsKernel<<<grid, dim3(kSumColumns / 4, rows), 0, stream>>>(call);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

struct AddBiasFunction {
  Elements y;
  ConstElements bias;
  int64_t columns;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t column = i - Quotient(i, columns) * columns;
    const Pack<kWidth> value = Load<kWidth>(y, i);
    const Pack<kWidth> addend = Load<kWidth>(bias, column);
    Floats<kWidth> floats;
    for (int k = 0; k < kWidth; ++k) floats.v[k] = value[k] + addend[k];
    Store(y, i, floats);
  }
};

}  // namespace

void SumColumns(ConstElements in, int64_t samples, int64_t length, int64_t span, int64_t groups,
                int64_t columns, Elements out, GradientScale scale, const SumScratch& scratch,
                cudaStream_t stream) {
  if (groups <= 0 || columns <= 0) return;
  if (span >= length) {  // all rows are one group
    length = span = samples * length;
    samples = 1;
  }
  const int64_t rows = samples * std::min(span, length);  // the rows of a group
  const int64_t blocks = groups * ((columns + kSumColumns - 1) / kSumColumns);
  const int64_t wanted = std::min((rows + kMostSumRows - 1) / kMostSumRows, kSumBlocks / blocks);
  const int64_t parts = std::clamp<int64_t>(wanted, 1, scratch.floats / (groups * columns) + 1);
  const bool direct = parts * groups * columns > scratch.floats || parts == 1;
  SumColumnsCall call{in,   samples, length, span,  columns,
                      rows, nullptr, out,    scale, WideRows(columns, {in})};
  if (direct) return LaunchSumColumns(call, groups, 1, stream);
  call.rows_per_block = (rows + parts - 1) / parts;
  call.partial = scratch.data;
  LaunchSumColumns(call, groups, parts, stream);
  SumColumns(scratch.data, 1, groups * parts, parts, groups, columns, out, scale, {}, stream);
}

void AddBias(Elements y, ConstElements bias, int64_t rows, int64_t columns, cudaStream_t stream) {
  ForEach(rows * columns, {y, bias}, columns % 8 == 0, AddBiasFunction{y, bias, columns}, stream);
}

}  // namespace spillway::cuda
