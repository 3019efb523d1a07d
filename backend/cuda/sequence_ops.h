// The ops on sequences that multiply no matrices, the softmax, the loss, the clipping of gradients,
// and the updates by Adam.

#ifndef SPILLWAY_BACKEND_CUDA_SEQUENCE_OPS_H_
#define SPILLWAY_BACKEND_CUDA_SEQUENCE_OPS_H_

#include "backend/cuda/sequence_kernels.h"
#include "backend/cuda/slot_launch.h"
#include "backend/cuda/slot_operands.h"

namespace spillway::cuda {

struct SequenceCall {
  const Op& op;
  const SlotLaunch& launch;
  const Operands& operands;
  const SumScratch& scratch;
  cudaStream_t stream;
};

// Enqueues the op and returns true, or returns false if its type does not belong here.
bool RunSequence(const SequenceCall& call);

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_SEQUENCE_OPS_H_
