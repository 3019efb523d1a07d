#include "backend/cuda/sequence_kernels.h"

#include <algorithm>

#include "backend/cuda/device_rows.h"

namespace spillway::cuda {
namespace {

struct NormForwardCall {
  ConstElements x, weight, bias;  // without bias, its data are null
  Elements y;
  float* mean;
  float* inv_std;
  int64_t rows;
  int64_t features;
  float epsilon;
};

// Each team normalises one row, of which each thread keeps `kParts` parts.
template <typename Team, int kParts, bool kWide>
__global__ void NormForwardKernel(NormForwardCall call) {
  const int64_t r = Team::row();
  if (r >= call.rows) return;
  const bool centred = call.bias.data != nullptr;
  const auto count = static_cast<float>(call.features);
  const RowPartOf<kWide> row{r * call.features, call.features};
  const RowPartOf<kWide> shared{0, call.features};
  Floats<4> x[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) x[i] = row.Get(call.x, Team::Column(i));
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (const float value : x[i].v) mean += value;
  }
  mean = centred ? Team::template Reduce<Sum>(mean) / count : 0;
  float variance = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      x[i].v[k] = Team::Column(i) + k < call.features ? x[i].v[k] - mean : 0;
      variance += x[i].v[k] * x[i].v[k];
    }
  }
  variance = Team::template Reduce<Sum>(variance) / count;
  const float inv_std = 1 / sqrtf(variance + call.epsilon);
  if (Team::rank() == 0 && call.inv_std != nullptr) {
    if (call.mean != nullptr) call.mean[r] = mean;
    call.inv_std[r] = inv_std;
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const Floats<4> weight = shared.Get(call.weight, Team::Column(i));
    Floats<4> bias{};
    if (centred) bias = shared.Get(call.bias, Team::Column(i));
    for (int k = 0; k < 4; ++k) x[i].v[k] = weight.v[k] * (x[i].v[k] * inv_std) + bias.v[k];
    row.Put(call.y, Team::Column(i), x[i], false);
  }
}

struct NormBackwardCall {
  ConstElements x, weight, dy;
  const float* mean;  // null without one
  const float* inv_std;
  Elements dx;  // its data are null if it is left out
  bool accumulate;
  float* dweight;  // a row of sums from each block
  float* dbias;    // as dweight, or null
  int64_t rows;
  int64_t features;
};

// Adds up the parts of the teams of a block in a fixed order and writes the sums to row blockIdx.x.
template <typename Team, bool kWide, int kParts>
__device__ void PutTeamSums(const Floats<4> (&parts)[kParts], float* sums, int64_t features) {
  const RowPartOf<kWide> out{blockIdx.x * features, features};
  if constexpr (!Team::kIsWarp) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) out.Put(sums, Team::Column(i), parts[i], false);
  } else {
    __shared__ Floats<4> shared[Team::kWarps][kParts * 32];
#pragma unroll
    for (int i = 0; i < kParts; ++i) shared[threadIdx.x / 32][i * 32 + Team::rank()] = parts[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kParts * 32; i += blockDim.x) {
      Floats<4> sum = shared[0][i];
      for (unsigned warp = 1; warp < Team::kWarps; ++warp) {
        for (int k = 0; k < 4; ++k) sum.v[k] += shared[warp][i].v[k];
      }
      out.Put(sums, int64_t{i} * 4, sum, false);
    }
    __syncthreads();  // the next call overwrites `shared`
  }
}

// Each team works on every so many rows and sums up the gradients of the parameters.
//
// dx = inv_std * (g - mean(g) - n * mean(g * n)) with g = weight * dy and n = (x - mean) * inv_std,
// where each mean() is taken over the row. Without a mean, mean(g) is left out.
template <typename Team, int kParts, bool kWide>
__global__ void NormBackwardKernel(NormBackwardCall call) {
  const bool centred = call.mean != nullptr;
  const auto count = static_cast<float>(call.features);
  const RowPartOf<kWide> shared{0, call.features};
  Floats<4> weight[kParts], dweight[kParts] = {}, dbias[kParts] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) weight[i] = shared.Get(call.weight, Team::Column(i));
  const int64_t step = int64_t{gridDim.x} * (blockDim.x / Team::size());
  for (int64_t r = Team::row(); r < call.rows; r += step) {
    const RowPartOf<kWide> row{r * call.features, call.features};
    Floats<4> normal[kParts], gradient[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      normal[i] = row.Get(call.x, Team::Column(i));
      gradient[i] = row.Get(call.dy, Team::Column(i));
    }
    const float mean = centred ? call.mean[r] : 0;
    const float inv_std = call.inv_std[r];
    float sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      for (int k = 0; k < 4; ++k) {
        const bool inside = Team::Column(i) + k < call.features;
        normal[i].v[k] = inside ? (normal[i].v[k] - mean) * inv_std : 0;
        dweight[i].v[k] += gradient[i].v[k] * normal[i].v[k];
        dbias[i].v[k] += gradient[i].v[k];
        gradient[i].v[k] *= weight[i].v[k];
        sum += gradient[i].v[k];
        product += gradient[i].v[k] * normal[i].v[k];
      }
    }
    if (call.dx.data == nullptr) continue;
    sum = centred ? Team::template Reduce<Sum>(sum) / count : 0;
    product = Team::template Reduce<Sum>(product) / count;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      for (int k = 0; k < 4; ++k) {
        gradient[i].v[k] = inv_std * (gradient[i].v[k] - sum - normal[i].v[k] * product);
      }
      row.Put(call.dx, Team::Column(i), gradient[i], call.accumulate);
    }
  }
  PutTeamSums<Team, kWide>(dweight, call.dweight, call.features);
  if (call.dbias != nullptr) PutTeamSums<Team, kWide>(dbias, call.dbias, call.features);
}

// Three blocks are what the registers of each of an H100's multiprocessors hold.
constexpr int64_t kMostNormBlocks = 132 * 3;

}  // namespace

void Normalize(ConstElements x, ConstElements weight, ConstElements bias, Elements y, float* mean,
               float* inv_std, int64_t rows, int64_t features, float epsilon, cudaStream_t stream) {
  if (rows <= 0) return;
  const bool wide = WideRows(features, {x, weight, bias, y});
  WithTeam(features, wide, [&](auto team, auto parts, auto is_wide) {
    NormForwardKernel<decltype(team), decltype(parts)::value, is_wide()>
        <<<team.Blocks(rows), team.Threads(), 0, stream>>>(
            {x, weight, bias, y, mean, inv_std, rows, features, epsilon});
  });
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void NormalizeBackward(ConstElements x, ConstElements weight, ConstElements dy, const float* mean,
                       const float* inv_std, Elements dx, bool accumulate, Elements dweight,
                       Elements dbias, GradientScale scale, int64_t rows, int64_t features,
                       const SumScratch& scratch, cudaStream_t stream) {
  const int64_t stride = (features + 3) / 4 * 4;
  const int64_t most = scratch.floats / ((dbias.data != nullptr ? 2 : 1) * stride);
  const bool wide = WideRows(features, {x, weight, dy, dx});
  int64_t blocks = 0;
  float* bias_sums = nullptr;
  WithTeam(features, wide, [&](auto team, auto parts, auto is_wide) {
    blocks = std::min({int64_t{team.Blocks(rows)}, most, kMostNormBlocks});
    if (dbias.data != nullptr) bias_sums = scratch.data + blocks * stride;
    const NormBackwardCall call{x,          weight,       dy,        mean, inv_std, dx,
                                accumulate, scratch.data, bias_sums, rows, features};
    NormBackwardKernel<decltype(team), decltype(parts)::value, is_wide()>
        <<<static_cast<unsigned>(blocks), team.Threads(), 0, stream>>>(call);
  });
  SPILLWAY_CUDA_CALL(cudaGetLastError());
  SumColumns(scratch.data, 1, blocks, blocks, 1, features, dweight, scale, {}, stream);
  if (dbias.data != nullptr) {
    SumColumns(bias_sums, 1, blocks, blocks, 1, features, dbias, scale, {}, stream);
  }
}

}  // namespace spillway::cuda
