// Fused attention by cuDNN's graph API behind plain types.
//
// Queries, outputs and their gradients are [batch, rows, heads, head_dim], keys, values and their
// gradients [batch, rows, kv_heads, head_dim], dense, of the type of the shape. The logarithms of
// the sums of the exponentials are fp32, [batch, heads, rows]. Scores are divided by the square
// root of head_dim. All pointers are 16-byte aligned device pointers, and calls enqueue on the
// stream that was set last. Failures throw (cuda_error.h). A library is not thread-safe.

#ifndef SPILLWAY_BACKEND_CUDA_ATTENTION_LIBRARY_H_
#define SPILLWAY_BACKEND_CUDA_ATTENTION_LIBRARY_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/device_memory.h"

namespace spillway::cuda {

enum class AttentionType : uint8_t { kBf16, kFp16 };

struct AttentionShape {
  AttentionType type = AttentionType::kBf16;
  int64_t batch = 0, rows = 0;
  int64_t heads = 0;     // the number of heads of queries
  int64_t kv_heads = 0;  // the number of heads of keys and values; divides `heads`
  int64_t head_dim = 0;  // a multiple of 8 up to 128, in inference up to 256
  bool causal = false;   // a position attends to itself and those before it only

  auto operator<=>(const AttentionShape&) const = default;
};

class AttentionLibrary {
 public:
  // Opens cuDNN on the current device. If `deterministic`, backward gives the same bits on every
  // run, which takes longer and a workspace as large as a score matrix. Forward always does. Throws
  // `EnvironmentError` if cuDNN is older than 9.16.
  explicit AttentionLibrary(bool deterministic);
  ~AttentionLibrary();
  AttentionLibrary(const AttentionLibrary&) = delete;
  AttentionLibrary& operator=(const AttentionLibrary&) = delete;

  void SetStream(cudaStream_t stream);

  // Return the workspace of `Forward` and `Backward`. The first call for a shape may compile a
  // kernel, which takes seconds. Throw `InputError` with cuDNN's reason if cuDNN does not support
  // the shape.
  Bytes ForwardWorkspace(const AttentionShape& shape, bool training, const Activity& activity);
  Bytes BackwardWorkspace(const AttentionShape& shape, const Activity& activity);

  // Computes y and, unless it is nullptr as in inference, log_sum_exp. `workspace` has at least the
  // bytes of `ForwardWorkspace`, where `training` says whether log_sum_exp is computed.
  void Forward(const AttentionShape& shape, const std::byte* q, const std::byte* k,
               const std::byte* v, std::byte* y, float* log_sum_exp, const DeviceRange& workspace,
               const Activity& activity);

  // Overwrites dq, dk and dv.
  void Backward(const AttentionShape& shape, const std::byte* q, const std::byte* k,
                const std::byte* v, const std::byte* y, const std::byte* dy,
                const float* log_sum_exp, std::byte* dq, std::byte* dk, std::byte* dv,
                const DeviceRange& workspace, const Activity& activity);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_ATTENTION_LIBRARY_H_
