// The kernel layer of the CUDA backend, which executes any slot of any op on real device memory.
//
// Convolutions, LRN and fused attention use cuDNN, and in float32 bias and batch normalisation,
// too. Products of matrices use cuBLAS, and cuBLASLt on sequences or in bfloat16. All other ops use
// kernels of this project. The layer allocates nothing per launch and makes no choices: memory,
// algorithm and micro-batch come from the caller. It supports every op type for which FORMAT.md
// gives a contract.
//
// FORMAT.md leaves these conventions to the implementation:
// - Average pooling divides by the size of the window clipped to the padded input.
// - LRN divides alpha by the window size.
// - The loss is the mean over the op's batch.
// - Dropout masks are `DropoutKeeps(seed, layer, element)`.
// - SGD is m = momentum * m + (dw + weight_decay * w), w -= learning_rate * m.
//
// Elements are float32 or bfloat16; sums and statistics are float32 for both. Fused attention is
// for bfloat16 only, local response normalisation and `rows` are for float32 only, and the tensors
// of a convolution or a pooling have one type.
//
// The layer is not thread-safe and serves one stream at a time. Three pieces of memory lie outside
// the arena: cuBLAS allocates a fixed workspace (32 MiB on Hopper), the gradients of a fused batch
// normalisation pass through 512 KiB, and partial sums over the positions of sequences through
// 16 MiB. Costs that were not measured add a fourth, the workspaces that they do not know.

#ifndef SPILLWAY_BACKEND_CUDA_KERNELS_H_
#define SPILLWAY_BACKEND_CUDA_KERNELS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/slot_launch.h"
#include "traces/trace.h"

struct CUstream_st;  // a cudaStream_t is a CUstream_st*

namespace spillway::cuda {

struct KernelOptions {
  std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
  uint64_t seed = 1;          // for the dropout masks
};

class CudaKernels {
 public:
  // Opens cuDNN and cuBLAS on the current device. Throws `EnvironmentError` that names the missing
  // part if there is no usable GPU, and `UsageError` if `math` is unknown.
  explicit CudaKernels(const KernelOptions& options);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Returns all ways to execute op.slots[slot] on `batch` samples. For a convolution they are the
  // algorithms that cuDNN accepts, in the order of `ConvAlgorithms`, except inaccurate ones. For
  // the products of sequences they are algorithms of cuBLASLt, whose names are the same for the
  // same version; a launch may take "default" in place of them. For any other op the only candidate
  // is "default", without workspace. An accepted algorithm may still fail when launched. Throws
  // `InputError` if the op type is unsupported or cuDNN accepts no algorithm.
  std::vector<Candidate> Candidates(const Op& op, size_t slot, int64_t batch,
                                    const OperandTypes& types = {});

  // Enqueues one launch on `stream`. Throws `InputError` that names the op in these cases: an
  // operand is missing or too small, the op type or algorithm is unknown, or the launch is a part
  // of an op whose batch cannot be split (`OpStep::whole_batch`). Throws `Error` if a library call
  // fails.
  void Launch(const Op& op, const SlotLaunch& launch, CUstream_st* stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_KERNELS_H_
