// Device code for kernels whose threads share rows: a row's parts of four elements, and the teams
// of threads that work on one row.

#ifndef SPILLWAY_BACKEND_CUDA_DEVICE_ROWS_H_
#define SPILLWAY_BACKEND_CUDA_DEVICE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cuda/device_elements.h"
#include "backend/cuda/sequence_kernels.h"

namespace spillway::cuda {

// Returns the number of threads of a block that has `columns` elements of a row to work on.
inline unsigned RowThreads(int64_t columns, int64_t most) {
  const int64_t warps = (columns + 127) / 128;  // each thread takes four elements at a time
  return static_cast<unsigned>(std::clamp<int64_t>(warps * 32, 32, most));
}

// Returns true iff rows of so many elements may be moved four elements at a time.
inline bool WideRows(int64_t columns, std::initializer_list<ConstElements> arrays) {
  return columns % 4 == 0 && Aligned(arrays);
}

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
  static constexpr unsigned kWarps = 4;  // the warps in a block of warps

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
  if (of_block <= 2) return with(block, std::integral_constant<int, 2>());
  if (of_block <= 4) return with(block, std::integral_constant<int, 4>());
  if (of_block <= 8) return with(block, std::integral_constant<int, 8>());
  with(block, std::integral_constant<int, kMostNormFeatures / (4 * kThreads)>());
}

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_DEVICE_ROWS_H_
