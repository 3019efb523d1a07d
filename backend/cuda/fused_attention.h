// The op that computes attention without a matrix of scores in memory, in bfloat16.

#ifndef SPILLWAY_BACKEND_CUDA_FUSED_ATTENTION_H_
#define SPILLWAY_BACKEND_CUDA_FUSED_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/cuda/attention_library.h"
#include "backend/cuda/slot_launch.h"
#include "backend/cuda/slot_operands.h"
#include "backend/cuda/spare_workspace.h"

namespace spillway::cuda {

class FusedAttention {
 public:
  void SetStream(cudaStream_t stream);

  // Returns the algorithms of a slot on `batch` samples. Backward has "deterministic" and "atomic",
  // which adds up gradients in any order; "default" is the first of them. Throws `InputError` that
  // names the op if its operands are not bfloat16 or cuDNN does not support its shape.
  std::vector<Candidate> Candidates(const Op& op, size_t slot, int64_t batch,
                                    const OperandTypes& types);
  void Run(const Op& op, const SlotLaunch& launch, const Operands& operands, SpareWorkspace& spare,
           const Activity& activity);

 private:
  // Returns the library for an algorithm. The first call opens it.
  AttentionLibrary& Library(bool deterministic);

  std::unique_ptr<AttentionLibrary> libraries_[2];
  cudaStream_t stream_ = nullptr;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_FUSED_ATTENTION_H_
