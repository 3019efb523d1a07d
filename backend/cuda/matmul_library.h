// cuBLASLt behind plain types: products of matrices, alone and in batches.
//
// matmul_library.cc is the only file of the project that includes cublasLt.h. Matrices are
// row-major. All pointers are device pointers, and calls enqueue on the stream that was set last.
// Failures throw (cuda_error.h). A library is not thread-safe.

#ifndef SPILLWAY_BACKEND_CUDA_MATMUL_LIBRARY_H_
#define SPILLWAY_BACKEND_CUDA_MATMUL_LIBRARY_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"

namespace spillway::cuda {

// The types of a product. Sums are kept in fp32.
enum class MatmulType : uint8_t {
  kFp32,        // fp32 matrices, fused multiply-add
  kTf32,        // fp32 matrices, whose elements are rounded to 10 bits of mantissa
  kBf16,        // bf16 matrices
  kBf16ToFp32,  // A and B are bf16, C and the epilogue's vector are fp32
};

// A pass over the output that costs no kernel of its own. The vector has the type of C.
enum class MatmulEpilogue : uint8_t {
  kNone,
  kBias,          // adds vector[j] to each element of column j of C, which is no sum of products
  kBiasGradient,  // overwrites vector[i] with the sum of row i of op(A). Needs one product in all.
};

// One level of a batch: `count` products, and the elements from an operand of one product to that
// of the next. A stride of 0 in `a` or `b` reads the same matrix again. A stride of 0 in `c` adds
// up the products of the level in one matrix.
struct MatmulLevel {
  int64_t count = 1;
  int64_t a = 0, b = 0, c = 0;

  auto operator<=>(const MatmulLevel&) const = default;
};

// C = alpha * op(A) op(B) + beta * C. op(A) is m x k, op(B) k x n and C m x n.
struct MatmulShape {
  MatmulType type = MatmulType::kFp32;
  MatmulEpilogue epilogue = MatmulEpilogue::kNone;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A lies in memory as k x m
  bool transpose_b = false;  // B lies in memory as n x k
  // The elements from one row in memory to the next.
  int64_t row_a = 0, row_b = 0, row_c = 0;
  // For example samples, heads of the keys, and queries of each of these heads. The library merges
  // levels where the strides allow it, gives cuBLASLt the largest level that is left, and makes a
  // call for each product of the others.
  std::array<MatmulLevel, 3> levels = {};
  // The bytes by which the addresses of all operands are divisible, a power of two. Kernels with
  // wide loads need 16.
  int64_t alignment = 256;

  auto operator<=>(const MatmulShape&) const = default;
};

// One way to compute a product.
struct MatmulCandidate {
  std::string name;  // for example "id21_tile15_stages12_splitk4", in cuBLASLt's numbers
  Bytes workspace;
  // Gives the same bits on every run. cuBLASLt adds up the parts of a split sum in a fixed order.
  bool deterministic = true;
};

class MatmulLibrary {
 public:
  // The heuristic is asked for so many candidates, with workspaces of at most so many bytes.
  static constexpr int kMaxCandidates = 8;
  static constexpr Bytes kMaxWorkspace = Bytes::MiB(32);

  // Opens cuBLASLt on the current device.
  MatmulLibrary();
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  // Returns for example "13.1.0".
  static std::string Version();

  void SetStream(cudaStream_t stream);

  // Returns the candidates of cuBLASLt's heuristic, the fastest that it expects first, each
  // algorithm once. Returns none if cuBLASLt does not support the shape, which the caller may meet
  // with another epilogue. Throws `InputError` if a length is below 1 or a row is shorter than the
  // matrix. Results are kept by shape.
  const std::vector<MatmulCandidate>& Candidates(const MatmulShape& shape,
                                                 const Activity& activity);

  // Returns the workspace of the algorithm `name`, which is that of a candidate of this or another
  // shape, or "default": the first algorithm that the heuristic proposes without a workspace.
  // Throws `InputError` that lists the candidates if the name says no algorithm or if cuBLASLt does
  // not support it for this shape.
  Bytes Workspace(const MatmulShape& shape, std::string_view name, const Activity& activity);

  // Computes C with the algorithm `name`, as `Workspace` explains it. `vector` is the epilogue's,
  // nullptr without one. `workspace` has at least the bytes of `Workspace` and is 256-byte aligned.
  void Multiply(const MatmulShape& shape, std::string_view name, float alpha, const std::byte* a,
                const std::byte* b, float beta, std::byte* c, std::byte* vector,
                const DeviceRange& workspace, const Activity& activity);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_MATMUL_LIBRARY_H_
