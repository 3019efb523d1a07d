#include "backend/cuda/sequence_kernels.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "backend/cuda/device_elements.h"

namespace spillway {
namespace {

// Returns the number of threads of a block that has `columns` elements of a row to work on.
unsigned RowThreads(int64_t columns, int64_t most) {
  const int64_t warps = (columns + 127) / 128;  // each thread takes four elements at a time
  return static_cast<unsigned>(std::clamp<int64_t>(warps * 32, 32, most));
}

// Returns true iff rows of so many elements may be moved four elements at a time.
bool WideRows(int64_t columns, std::initializer_list<ConstElements> arrays) {
  return columns % 4 == 0 && Aligned(arrays);
}

// --- Rows that a block keeps in registers

// A row, of which four elements at a time are read or written from column `column` on, a multiple
// of four. Elements behind the row's end are 0. If `kWide`, the row has whole fours at aligned
// addresses.
template <bool kWide>
struct RowPartOf {
  int64_t first;  // the row's first element
  int64_t columns;

  __device__ Floats<4> Get(const ConstElements& from, int64_t column) const {
    Floats<4> part{};
    if constexpr (kWide) {
      if (column >= columns) return part;
      const Pack<4> pack = Load<4>(from, first + column);
#pragma unroll
      for (int k = 0; k < 4; ++k) part.v[k] = pack[k];
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (column + k < columns) part.v[k] = LoadOne(from, first + column + k);
      }
    }
    return part;
  }
  __device__ void Put(const Elements& to, int64_t column, Floats<4> part, bool accumulate) const {
    if constexpr (kWide) {
      if (column < columns) StoreOrAdd<4>(to, first + column, part, accumulate);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (column + k >= columns) continue;
        StoreOrAdd<1>(to, first + column + k, {{part.v[k]}}, accumulate);
      }
    }
  }
};

// The same with a choice that is made when the kernel runs.
struct RowPart {
  int64_t first;
  int64_t columns;
  bool wide;

  __device__ Floats<4> Get(const ConstElements& from, int64_t column) const {
    return wide ? RowPartOf<true>{first, columns}.Get(from, column)
                : RowPartOf<false>{first, columns}.Get(from, column);
  }
  __device__ void Put(const Elements& to, int64_t column, Floats<4> part, bool accumulate) const {
    wide ? RowPartOf<true>{first, columns}.Put(to, column, part, accumulate)
         : RowPartOf<false>{first, columns}.Put(to, column, part, accumulate);
  }
};

// The threads that work on one row together: a warp, or the block.
template <bool kWarp>
struct Team {
  static constexpr bool kIsWarp = kWarp;
  static constexpr unsigned kWarps = 4;  // of a block of warps

  __device__ static unsigned rank() { return kWarp ? threadIdx.x % 32 : threadIdx.x; }
  __device__ static unsigned size() { return kWarp ? 32 : blockDim.x; }
  __device__ static int64_t row() {
    return kWarp ? int64_t{blockIdx.x} * kWarps + threadIdx.x / 32 : int64_t{blockIdx.x};
  }
  // Returns the column of the thread's part number `i`.
  __device__ static int64_t Column(int i) { return (int64_t{i} * size() + rank()) * 4; }
  template <typename Operation>
  __device__ static float Reduce(float value) {
    return kWarp ? WarpReduce<Operation>(value) : BlockReduce<Operation>(value);
  }
  static unsigned Threads() { return kWarp ? kWarps * 32 : kThreads; }
  static unsigned Blocks(int64_t rows) {
    return static_cast<unsigned>(kWarp ? (rows + kWarps - 1) / kWarps : rows);
  }
};

// Calls run(team, parts, wide) with the team for rows of so many columns, the number of parts that
// each of its threads keeps in registers, and `wide`, all as constants. REQUIRES: columns <=
// kMostNormFeatures.
template <typename Run>
void WithTeam(int64_t columns, bool wide, const Run& run) {
  const auto with = [&](auto team, auto parts) {
    wide ? run(team, parts, std::true_type()) : run(team, parts, std::false_type());
  };
  const Team<true> warp;
  const int64_t of_warp = (columns + 127) / 128;
  if (of_warp <= 1) return with(warp, std::integral_constant<int, 1>());
  if (of_warp <= 2) return with(warp, std::integral_constant<int, 2>());
  if (of_warp <= 4) return with(warp, std::integral_constant<int, 4>());
  if (of_warp <= 6) return with(warp, std::integral_constant<int, 6>());
  if (of_warp <= 8) return with(warp, std::integral_constant<int, 8>());
  const Team<false> block;
  const int64_t of_block = (columns + 4 * kThreads - 1) / (4 * kThreads);
  if (of_block <= 4) return with(block, std::integral_constant<int, 4>());
  if (of_block <= 8) return with(block, std::integral_constant<int, 8>());
  with(block, std::integral_constant<int, kMostNormFeatures / (4 * kThreads)>());
}

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
  const unsigned teams = blockDim.x / Team::size();
  for (unsigned team = 0; team < teams; ++team) {
    if (threadIdx.x / Team::size() == team) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) out.Put(sums, Team::Column(i), parts[i], team > 0);
    }
    __syncthreads();
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

// Six blocks on each multiprocessor of an H100 leave none idle.
constexpr int64_t kMostNormBlocks = 132 * 6;

// --- Sums over rows

constexpr int64_t kSumBlocks = 132 * 8;  // more blocks are not needed to keep an H100 busy
constexpr unsigned kSumColumns = 128;    // columns of a block, four of each thread
constexpr unsigned kSumRows = 8;         // rows that a block reads at a time

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
    for (int64_t r = from + threadIdx.y; r < to; r += kSumRows) {
      const int64_t sample = call.samples == 1 ? 0 : Quotient(r, inner);
      const int64_t row = sample * call.length + begin + r - sample * inner;
      const Floats<4> part =
          RowPart{row * call.columns, call.columns, call.wide}.Get(call.in, column);
      for (int k = 0; k < 4; ++k) sum.v[k] += part.v[k];
    }
  }
  __shared__ Floats<4> shared[kSumRows][kSumColumns / 4];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (unsigned y = 1; y < kSumRows; ++y) {
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
  SumColumnsKernel<<<grid, dim3(kSumColumns / 4, kSumRows), 0, stream>>>(call);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

// Reduces `parts` rows of sums that lie in the scratch.
void SumParts(float* partial, int64_t parts, int64_t groups, int64_t columns, Elements out,
              GradientScale scale, cudaStream_t stream) {
  const bool wide = WideRows(columns, {partial});
  const SumColumnsCall call{partial, 1,   groups * parts, parts, columns, parts,
                            nullptr, out, scale,          wide};
  LaunchSumColumns(call, groups, 1, stream);
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

// --- Embeddings

__global__ void EmbedKernel(const int32_t* tokens, ConstElements table, Elements y,
                            int64_t vocabulary, int64_t features, bool wide) {
  const int64_t token = tokens[blockIdx.x];
  const bool known = token >= 0 && token < vocabulary;
  const RowPart from{known ? token * features : 0, features, wide};
  const RowPart to{int64_t{blockIdx.x} * features, features, wide};
  for (int64_t column = threadIdx.x * 4; column < features; column += blockDim.x * 4) {
    Floats<4> part = from.Get(table, column);
    if (!known) part = {{NAN, NAN, NAN, NAN}};
    to.Put(y, column, part, false);
  }
}

// The block of a token's first row adds up all rows of the token; the others do nothing.
__global__ void EmbedBackwardKernel(const int32_t* tokens, ConstElements dy, Elements dtable,
                                    GradientScale scale, int64_t rows, int64_t vocabulary,
                                    int64_t features, bool wide) {
  const int64_t row = blockIdx.x;
  const int32_t token = tokens[row];
  if (token < 0 || token >= vocabulary) return;
  bool before = false;
  for (int64_t i = threadIdx.x; i < row; i += blockDim.x) before |= tokens[i] == token;
  if (__syncthreads_or(before)) return;

  __shared__ int64_t list[kThreads];  // rows of the token, in order
  __shared__ int counts[kThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const RowPart to{token * features, features, wide};
  bool first = true;
  for (int64_t base = row; base < rows; base += blockDim.x) {
    const int64_t i = base + threadIdx.x;
    const bool equal = i < rows && tokens[i] == token;
    const unsigned votes = __ballot_sync(0xffffffffu, equal);
    if (!__syncthreads_or(equal)) continue;
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int place = __popc(votes & ((1u << lane) - 1));
    int count = 0;
    for (unsigned w = 0; w < warps; ++w) {
      if (w < warp) place += counts[w];
      count += counts[w];
    }
    if (equal) list[place] = i;
    __syncthreads();
    const float beta = first ? scale.beta : 1;
    for (int64_t column = threadIdx.x * 4; column < features; column += blockDim.x * 4) {
      Floats<4> sum{};
      for (int k = 0; k < count; ++k) {
        const Floats<4> part = RowPart{list[k] * features, features, wide}.Get(dy, column);
        for (int j = 0; j < 4; ++j) sum.v[j] += part.v[j];
      }
      for (float& value : sum.v) value *= scale.alpha;
      to.Put(dtable, column, sum, beta != 0);
    }
    first = false;
    __syncthreads();  // the next round overwrites the list
  }
}

struct EmbedPositionsFunction {
  ConstElements x, table, token;  // without a class token, its data are null
  Elements y;
  int64_t length, features, span;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t row = Quotient(i, features), column = i - row * features;
    const int64_t sample = Quotient(row, length), t = row - sample * length;
    const Pack<kWidth> addend = Load<kWidth>(table, Quotient(t, span) * features + column);
    Floats<kWidth> floats;
    if (token.data == nullptr) {
      const Pack<kWidth> value = Load<kWidth>(x, i);
      for (int k = 0; k < kWidth; ++k) floats.v[k] = value[k] + addend[k];
    } else {
      for (int k = 0; k < kWidth; ++k) {
        const int64_t pixel = (sample * features + column + k) * (length - 1) + t - 1;
        floats.v[k] = (t == 0 ? LoadOne(token, column + k) : LoadOne(x, pixel)) + addend[k];
      }
    }
    Store(y, i, floats);
  }
};

struct PixelGradientsFunction {
  ConstElements dy;
  Elements dx;
  bool accumulate;
  int64_t length, features;

  template <int kWidth>
  __device__ void Do(int64_t i) const {
    const int64_t pixels = length - 1;
    const int64_t plane = Quotient(i, pixels), pixel = i - plane * pixels;
    const int64_t sample = Quotient(plane, features), column = plane - sample * features;
    const float value = LoadOne(dy, (sample * length + pixel + 1) * features + column);
    StoreOrAdd<1>(dx, i, {{value}}, accumulate);
  }
};

// --- Rotary embedding

struct RotateCall {
  ConstElements x;
  Elements y;
  bool accumulate;
  double sign;
  int64_t samples, length, heads, half;
  double log_theta;  // to the base 2
};

// Thread x of the grid turns one pair of features at one position, in the heads of the samples from
// blockIdx.y on.
__global__ void RotateKernel(RotateCall call) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= call.length * call.half) return;
  const int64_t t = at / call.half, i = at - t * call.half;
  const double share = static_cast<double>(i) / static_cast<double>(call.half);
  double sine, cosine;
  sincos(call.sign * static_cast<double>(t) * exp2(-share * call.log_theta), &sine, &cosine);
  const auto s = static_cast<float>(sine), c = static_cast<float>(cosine);
  for (int64_t n = blockIdx.y; n < call.samples; n += gridDim.y) {
    int64_t a = (n * call.length + t) * call.heads * 2 * call.half + i;
#pragma unroll 4
    for (int64_t h = 0; h < call.heads; ++h, a += 2 * call.half) {
      const float first = LoadOne(call.x, a), second = LoadOne(call.x, a + call.half);
      StoreOrAdd<1>(call.y, a, {{first * c - second * s}}, call.accumulate);
      StoreOrAdd<1>(call.y, a + call.half, {{second * c + first * s}}, call.accumulate);
    }
  }
}

// --- Softmax and loss

// The most columns of a row whose softmax a warp keeps in registers.
constexpr int64_t kMostWarpColumns = 1024;

// Each warp computes the softmax of one row.
template <int kParts, bool kWide>
__global__ void SoftmaxRowsKernel(ConstElements x, Elements y, int64_t rows, int64_t columns,
                                  bool causal) {
  using Warp = Team<true>;
  const int64_t r = Warp::row();
  if (r >= rows) return;
  const int64_t count = causal ? r - Quotient(r, columns) * columns + 1 : columns;
  const RowPartOf<kWide> row{r * columns, columns};
  Floats<4> part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (Warp::Column(i) < count) part[i] = row.Get(x, Warp::Column(i));
  }
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      if (Warp::Column(i) + k < count) largest = fmaxf(largest, part[i].v[k]);
    }
  }
  largest = WarpReduce<Max>(largest);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      part[i].v[k] = Warp::Column(i) + k < count ? expf(part[i].v[k] - largest) : 0;
      sum += part[i].v[k];
    }
  }
  sum = WarpReduce<Sum>(sum);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (float& value : part[i].v) value /= sum;
    row.Put(y, Warp::Column(i), part[i], false);
  }
}

template <int kParts, bool kWide>
__global__ void SoftmaxBackwardRowsKernel(ConstElements y, ConstElements dy, Elements dx,
                                          bool accumulate, int64_t rows, int64_t columns,
                                          bool causal) {
  using Warp = Team<true>;
  const int64_t r = Warp::row();
  if (r >= rows) return;
  const int64_t count = causal ? r - Quotient(r, columns) * columns + 1 : columns;
  const RowPartOf<kWide> row{r * columns, columns};
  Floats<4> p[kParts], gradient[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (Warp::Column(i) >= count) continue;
    p[i] = row.Get(y, Warp::Column(i));
    gradient[i] = row.Get(dy, Warp::Column(i));
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      if (Warp::Column(i) + k < count) sum += p[i].v[k] * gradient[i].v[k];
    }
  }
  sum = WarpReduce<Sum>(sum);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    for (int k = 0; k < 4; ++k) {
      const bool inside = Warp::Column(i) + k < count;
      p[i].v[k] = inside ? p[i].v[k] * (gradient[i].v[k] - sum) : 0;
    }
    row.Put(dx, Warp::Column(i), p[i], accumulate);
  }
}

// The columns of a row in parts of four whose addresses are aligned, wherever the row begins.
struct AlignedRow {
  int64_t first;
  int64_t columns;
  bool aligned;  // the array begins at an aligned address

  // Returns the first column, which is in front of the row if the row's address is not aligned.
  __device__ int64_t begin() const { return -(first & 3) + threadIdx.x * 4; }
  __device__ bool Whole(int64_t column) const {
    return aligned && column >= 0 && column + 4 <= columns;
  }
  __device__ bool Has(int64_t column) const { return column >= 0 && column < columns; }
  __device__ Floats<4> Get(const ConstElements& from, int64_t column) const {
    Floats<4> part{};
    if (Whole(column)) {
      const Pack<4> pack = Load<4>(from, first + column);
      for (int k = 0; k < 4; ++k) part.v[k] = pack[k];
    } else {
      for (int k = 0; k < 4; ++k) {
        if (Has(column + k)) part.v[k] = LoadOne(from, first + column + k);
      }
    }
    return part;
  }
  __device__ void Put(const Elements& to, int64_t column, const Floats<4>& part,
                      bool accumulate) const {
    if (Whole(column)) {
      StoreOrAdd<4>(to, first + column, part, accumulate);
    } else {
      for (int k = 0; k < 4; ++k) {
        if (Has(column + k)) {
          StoreOrAdd<1>(to, first + column + k, {{part.v[k]}}, accumulate);
        }
      }
    }
  }
};

// Each block computes the softmax of one row in two passes.
__global__ void SoftmaxKernel(ConstElements x, Elements y, int64_t columns, bool causal,
                              bool aligned) {
  const int64_t count = causal ? blockIdx.x % columns + 1 : columns;
  const AlignedRow row{blockIdx.x * columns, columns, aligned};
  const auto has = [&](int64_t column) { return column >= 0 && column < count; };
  float largest = -INFINITY, sum = 0;
#pragma unroll 2
  for (int64_t column = row.begin(); column < count; column += blockDim.x * 4) {
    const Floats<4> part = row.Get(x, column);
    float most = largest;
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) most = fmaxf(most, part.v[k]);
    }
    if (most > largest) {
      sum *= expf(largest - most);
      largest = most;
    }
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) sum += expf(part.v[k] - largest);
    }
  }
  const float all = BlockReduce<Max>(largest);
  sum = BlockReduce<Sum>(largest == -INFINITY ? sum : sum * expf(largest - all));
#pragma unroll 2
  for (int64_t column = row.begin(); column < columns; column += blockDim.x * 4) {
    Floats<4> part = row.Get(x, column);
    for (int k = 0; k < 4; ++k) {
      part.v[k] = has(column + k) ? expf(part.v[k] - all) / sum : 0;
    }
    row.Put(y, column, part, false);
  }
}

__global__ void SoftmaxBackwardKernel(ConstElements y, ConstElements dy, Elements dx,
                                      bool accumulate, int64_t columns, bool causal, bool aligned) {
  const int64_t count = causal ? blockIdx.x % columns + 1 : columns;
  const AlignedRow row{blockIdx.x * columns, columns, aligned};
  const auto has = [&](int64_t column) { return column >= 0 && column < count; };
  float sum = 0;
  for (int64_t column = row.begin(); column < count; column += blockDim.x * 4) {
    const Floats<4> p = row.Get(y, column), gradient = row.Get(dy, column);
    for (int k = 0; k < 4; ++k) {
      if (has(column + k)) sum += p.v[k] * gradient.v[k];
    }
  }
  sum = BlockReduce<Sum>(sum);
  for (int64_t column = row.begin(); column < columns; column += blockDim.x * 4) {
    const Floats<4> gradient = row.Get(dy, column);
    Floats<4> part = row.Get(y, column);
    for (int k = 0; k < 4; ++k) {
      part.v[k] = has(column + k) ? part.v[k] * (gradient.v[k] - sum) : 0;
    }
    row.Put(dx, column, part, accumulate);
  }
}

constexpr unsigned kLossThreads = 1024;

__global__ void CrossEntropyKernel(ConstElements y, const int32_t* labels, float* loss,
                                   int64_t rows, int64_t classes, float scale, bool accumulate) {
  float sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kLossThreads) {
    const int64_t label = labels[row];
    const bool known = label >= 0 && label < classes;
    const float p = known ? LoadOne(y, row * classes + label) : NAN;
    sum -= logf(p < FLT_MIN ? FLT_MIN : p);  // NaN stays NaN
  }
  sum = BlockReduce<Sum>(sum);
  if (threadIdx.x == 0) *loss = (accumulate ? *loss : 0.0f) + scale * sum;
}

__global__ void LossBackwardKernel(ConstElements y, const int32_t* labels, Elements dx,
                                   int64_t classes, float scale, bool aligned) {
  const AlignedRow row{blockIdx.x * classes, classes, aligned};
  const int64_t label = labels[blockIdx.x];
#pragma unroll 2
  for (int64_t column = row.begin(); column < classes; column += blockDim.x * 4) {
    Floats<4> part = row.Get(y, column);
    for (int k = 0; k < 4; ++k) part.v[k] = scale * (part.v[k] - (column + k == label ? 1 : 0));
    row.Put(dx, column, part, false);
  }
}

// --- Updates

struct AdamCall {
  AdamParameter parameters[kMostAdamParameters];
  bool wide[kMostAdamParameters];  // whether elements can be moved four at a time
  AdamRule rule;
  double log_beta1, log_beta2;
};

// Each block updates a part of one parameter. Its first thread computes the corrections that depend
// on the step.
__global__ void AdamKernel(AdamCall call) {
  const AdamParameter& p = call.parameters[blockIdx.y];
  const AdamRule& rule = call.rule;
  if (int64_t{blockIdx.x} * blockDim.x * 4 >= p.count) return;
  __shared__ float size, root;
  if (threadIdx.x == 0) {
    const double step = static_cast<double>(*p.step) + 1;
    size = static_cast<float>(rule.learning_rate / -expm1(step * call.log_beta1));
    root = static_cast<float>(sqrt(-expm1(step * call.log_beta2)));
  }
  __syncthreads();
  const auto beta1 = static_cast<float>(rule.beta1), rest1 = static_cast<float>(1 - rule.beta1);
  const auto beta2 = static_cast<float>(rule.beta2), rest2 = static_cast<float>(1 - rule.beta2);
  const auto epsilon = static_cast<float>(rule.epsilon);
  const double decay = rule.learning_rate * rule.weight_decay;
  const auto kept = static_cast<float>(rule.decay_apart ? 1 - decay : 1);
  const auto pull = static_cast<float>(rule.decay_apart ? 0 : rule.weight_decay);
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  const RowPart part{0, p.count, call.wide[blockIdx.y]};
  const Floats<4> w = part.Get(p.weight, i), g = part.Get(p.gradient, i);
  const Floats<4> m = part.Get(p.first, i), v = part.Get(p.second, i);
  Floats<4> next_w, next_m, next_v;
  for (int k = 0; k < 4; ++k) {
    const float gradient = g.v[k] + pull * w.v[k];
    next_m.v[k] = beta1 * m.v[k] + rest1 * gradient;
    next_v.v[k] = beta2 * v.v[k] + rest2 * gradient * gradient;
    next_w.v[k] = kept * w.v[k] - size * next_m.v[k] / (sqrtf(next_v.v[k]) / root + epsilon);
  }
  part.Put(p.next_first, i, next_m, false);
  part.Put(p.next_second, i, next_v, false);
  part.Put(p.next_weight, i, next_w, false);
  if (p.next_copy.data != nullptr) part.Put(p.next_copy, i, next_w, false);
}

// Runs behind `AdamKernel`, whose blocks read the old steps.
__global__ void AdamStepKernel(AdamCall call) {
  const AdamParameter& p = call.parameters[threadIdx.x];
  *p.next_step = *p.step + 1;
}

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
  SumParts(scratch.data, blocks, 1, features, dweight, scale, stream);
  if (dbias.data != nullptr) SumParts(bias_sums, blocks, 1, features, dbias, scale, stream);
}

void SumColumns(ConstElements in, int64_t samples, int64_t length, int64_t span, int64_t groups,
                int64_t columns, Elements out, GradientScale scale, const SumScratch& scratch,
                cudaStream_t stream) {
  if (groups <= 0 || columns <= 0) return;
  if (span >= length) {  // all rows are one group
    length = span = samples * length;
    samples = 1;
  }
  const int64_t rows = samples * std::min(span, length);  // of a group
  const int64_t blocks = groups * ((columns + kSumColumns - 1) / kSumColumns);
  const int64_t wanted = std::min((rows + 4 * kSumRows - 1) / (4 * kSumRows), kSumBlocks / blocks);
  const int64_t parts = std::clamp<int64_t>(wanted, 1, scratch.floats / (groups * columns) + 1);
  const bool direct = parts * groups * columns > scratch.floats || parts == 1;
  SumColumnsCall call{in,   samples, length, span,  columns,
                      rows, nullptr, out,    scale, WideRows(columns, {in})};
  if (direct) return LaunchSumColumns(call, groups, 1, stream);
  call.rows_per_block = (rows + parts - 1) / parts;
  call.partial = scratch.data;
  LaunchSumColumns(call, groups, parts, stream);
  SumParts(scratch.data, parts, groups, columns, out, scale, stream);
}

void AddBias(Elements y, ConstElements bias, int64_t rows, int64_t columns, cudaStream_t stream) {
  ForEach(rows * columns, {y, bias}, columns % 8 == 0, AddBiasFunction{y, bias, columns}, stream);
}

void Embed(const int32_t* tokens, ConstElements table, Elements y, int64_t rows, int64_t vocabulary,
           int64_t features, cudaStream_t stream) {
  if (rows <= 0) return;
  EmbedKernel<<<static_cast<unsigned>(rows), RowThreads(features, kThreads), 0, stream>>>(
      tokens, table, y, vocabulary, features, WideRows(features, {table, y}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void EmbedBackward(const int32_t* tokens, ConstElements dy, Elements dtable, GradientScale scale,
                   int64_t rows, int64_t vocabulary, int64_t features, cudaStream_t stream) {
  if (scale.beta == 0) {
    const auto bytes = static_cast<size_t>(dtable.Size(vocabulary * features));
    SPILLWAY_CUDA_CALL(cudaMemsetAsync(dtable.data, 0, bytes, stream));
  }
  if (rows <= 0) return;
  EmbedBackwardKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      tokens, dy, dtable, scale, rows, vocabulary, features, WideRows(features, {dy, dtable}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void EmbedPositions(ConstElements x, ConstElements table, ConstElements token, Elements y,
                    int64_t samples, int64_t length, int64_t features, int64_t span,
                    cudaStream_t stream) {
  ForEach(samples * length * features, {x, table, token, y}, features % 8 == 0,
          EmbedPositionsFunction{x, table, token, y, length, features, span}, stream);
}

void PixelGradients(ConstElements dy, Elements dx, bool accumulate, int64_t samples, int64_t length,
                    int64_t features, cudaStream_t stream) {
  ForEach(samples * (length - 1) * features, {dy, dx}, false,
          PixelGradientsFunction{dy, dx, accumulate, length, features}, stream);
}

void Rotate(ConstElements x, Elements y, bool backward, bool accumulate, int64_t samples,
            int64_t length, int64_t heads, int64_t head_dim, double theta, cudaStream_t stream) {
  const int64_t half = head_dim / 2;
  if (samples <= 0 || length * half <= 0) return;
  const dim3 grid(BlockCount(length * half), static_cast<unsigned>(std::min<int64_t>(samples, 64)));
  RotateKernel<<<grid, kThreads, 0, stream>>>(
      {x, y, accumulate, backward ? -1.0 : 1.0, samples, length, heads, half, std::log2(theta)});
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void Softmax(ConstElements x, Elements y, int64_t rows, int64_t columns, bool causal,
             cudaStream_t stream) {
  if (rows <= 0) return;
  if (columns <= kMostWarpColumns) {
    WithTeam(columns, WideRows(columns, {x, y}), [&](auto team, auto parts, auto wide) {
      if constexpr (decltype(team)::kIsWarp) {
        SoftmaxRowsKernel<decltype(parts)::value, wide()>
            <<<team.Blocks(rows), team.Threads(), 0, stream>>>(x, y, rows, columns, causal);
      }
    });
  } else {
    SoftmaxKernel<<<static_cast<unsigned>(rows), RowThreads(columns, 512), 0, stream>>>(
        x, y, columns, causal, Aligned({x, y}));
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SoftmaxBackward(ConstElements y, ConstElements dy, Elements dx, bool accumulate, int64_t rows,
                     int64_t columns, bool causal, cudaStream_t stream) {
  if (rows <= 0) return;
  if (columns <= kMostWarpColumns) {
    WithTeam(columns, WideRows(columns, {y, dy, dx}), [&](auto team, auto parts, auto wide) {
      if constexpr (decltype(team)::kIsWarp) {
        SoftmaxBackwardRowsKernel<decltype(parts)::value, wide()>
            <<<team.Blocks(rows), team.Threads(), 0, stream>>>(y, dy, dx, accumulate, rows, columns,
                                                               causal);
      }
    });
  } else {
    SoftmaxBackwardKernel<<<static_cast<unsigned>(rows), RowThreads(columns, 512), 0, stream>>>(
        y, dy, dx, accumulate, columns, causal, Aligned({y, dy, dx}));
  }
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void CrossEntropy(ConstElements y, const int32_t* labels, float* loss, int64_t rows,
                  int64_t classes, float scale, bool accumulate, cudaStream_t stream) {
  CrossEntropyKernel<<<1, kLossThreads, 0, stream>>>(y, labels, loss, rows, classes, scale,
                                                     accumulate);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void SoftmaxCrossEntropyBackward(ConstElements y, const int32_t* labels, Elements dx, int64_t rows,
                                 int64_t classes, float scale, cudaStream_t stream) {
  if (rows <= 0) return;
  LossBackwardKernel<<<static_cast<unsigned>(rows), RowThreads(classes, 512), 0, stream>>>(
      y, labels, dx, classes, scale, Aligned({y, dx}));
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

void Adam(const AdamParameter* parameters, size_t count, const AdamRule& rule,
          cudaStream_t stream) {
  AdamCall call;
  call.rule = rule;
  call.log_beta1 = std::log(rule.beta1);
  call.log_beta2 = std::log(rule.beta2);
  int64_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const AdamParameter& p = call.parameters[i] = parameters[i];
    call.wide[i] = WideRows(p.count, {p.weight, p.gradient, p.first, p.second, p.next_weight,
                                      p.next_first, p.next_second, p.next_copy});
    largest = std::max(largest, p.count);
  }
  if (largest == 0) return;
  AdamKernel<<<dim3(BlockCount((largest + 3) / 4), static_cast<unsigned>(count)), kThreads, 0,
               stream>>>(call);
  AdamStepKernel<<<1, static_cast<unsigned>(count), 0, stream>>>(call);
  SPILLWAY_CUDA_CALL(cudaGetLastError());
}

}  // namespace spillway
