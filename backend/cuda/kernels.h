// The kernel layer of the CUDA backend: executes any slot of any op on real device memory.
//
// Convolutions, bias, LRN and batch normalisation go through cuDNN, GEMMs through cuBLAS, the rest
// through own kernels. It allocates nothing per launch, places nothing and makes no choices:
// memory, algorithm and micro-batch come from the caller. Supported: every op type that FORMAT.md
// gives a contract.
// Conventions that FORMAT.md leaves to the implementation: average pooling divides by the window
// clipped to the padded input; LRN divides alpha by the window size; the loss is the mean over the
// op's batch; dropout masks are `DropoutKeeps(seed, layer, element)`; SGD is
// m = momentum * m + (dw + weight_decay * w), w -= learning_rate * m.
// Not thread-safe, and for one stream at a time. Outside the arena, cuBLAS takes a fixed workspace
// of its own (32 MiB on Hopper), and gradients of a fused batch normalisation pass through 512 KiB.

#ifndef SPILLWAY_BACKEND_CUDA_KERNELS_H_
#define SPILLWAY_BACKEND_CUDA_KERNELS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "traces/base/units.h"
#include "traces/trace.h"

struct CUstream_st;  // *CUstream_st is a cudaStream_t

namespace spillway {

struct KernelOptions {
  std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
  uint64_t seed = 1;          // of the dropout masks
};

// One way to execute a slot.
struct Candidate {
  std::string algorithm;  // "default" where the library offers no choice
  Bytes workspace;
  bool deterministic = true;  // gives the same bits on every run
};

// Executes samples [first, first + batch) of one slot. The ranges are those of the whole op, in the
// order of op.inputs and op.outputs; per-sample operands are offset here. The parts of a slot are
// launched in order from first = 0, which overwrites parameter gradients and the loss; later parts
// add to them.
struct SlotLaunch {
  size_t slot = 0;
  std::string_view algorithm = "default";
  int64_t first = 0;
  int64_t batch = 0;
  std::span<const DeviceRange> inputs;
  std::span<const DeviceRange> outputs;
  DeviceRange workspace;  // at least the candidate's
};

class CudaKernels {
 public:
  // Opens cuDNN and cuBLAS on the current device. Throws `EnvironmentError` that says what is
  // missing if there is no usable GPU, `UsageError` for an unknown math.
  explicit CudaKernels(const KernelOptions& options);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Everything that can execute op.slots[slot] on `batch` samples: for a convolution each algorithm
  // that cuDNN accepts, in the order of `ConvAlgorithms`, else the one candidate "default" without
  // workspace. Acceptance is no promise: an algorithm may still fail when launched. Throws
  // `InputError` for an unsupported op type or if cuDNN accepts no algorithm.
  std::vector<Candidate> Candidates(const Op& op, size_t slot, int64_t batch);

  // Enqueues one launch on `stream`. Throws `InputError` that names the op if an operand is missing
  // or too small, or the op type or algorithm is unknown; `Error` if a library call fails.
  // REQUIRES: a linear backward op with a fused update and dx, and a batchnorm op of training, run
  // as one part.
  void Launch(const Op& op, const SlotLaunch& launch, CUstream_st* stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_KERNELS_H_
