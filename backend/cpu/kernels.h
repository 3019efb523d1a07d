// The kernels of the CPU backend, which execute any op of a trace on host memory.
//
// The kernels are simple and single-threaded. They offer no choice of algorithm. They support every
// op type for which FORMAT.md gives a contract. Any other op of a recorded trace runs a stand-in
// (stand_in.h).
//
// If FORMAT.md leaves a choice, these kernels agree with backend/cuda/kernels.h:
// - Average pooling divides by the size of the window clipped to the padded input.
// - In max pooling, the first maximum of a window takes the gradient.
// - LRN divides alpha by the window size.
// - The loss is the mean over the op's batch.
// - Dropout masks are `DropoutKeeps(seed, layer, element)`.
// - SGD is m = momentum * m + (dw + weight_decay * w), w -= learning_rate * m.
// - Adam and AdamW are PyTorch's, with corrections of the bias of both moments.
//
// The kernels are deterministic on one machine: the same inputs give the same bits wherever the
// operands lie. In backward, operands must be aligned to 64 bytes for that. A forward op that
// computes only some channels or features gives them the same bits as one that computes all. NaN in
// an input reaches the outputs, so that poisoned memory shows.

#ifndef SPILLWAY_BACKEND_CPU_KERNELS_H_
#define SPILLWAY_BACKEND_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/core/backend.h"
#include "traces/trace.h"

namespace spillway::cpu {

// Runs all slots of one op.
//
// `runs` divides the batch of an op type with a choice of kernels into micro-batches; if it is
// empty, each slot runs once on the whole batch. The first micro-batch overwrites the filter
// gradients and later ones add to them, so that any division gives the bits of the whole batch.
//
// Operands are in the contract's order. Their elements are `Scalar` (float or double), except that
// labels and tokens are int32. Each span covers exactly the tensor's elements; an sgd op finds the
// sizes of its parameters from them. An operand that is both an input and an output (accumulated,
// updated in place, or an alias that the contract allows) is the same memory in both lists. Every
// element of an output is written. No output element is read before it is written, unless it is
// also an input.
//
// Throws `InputError` that names the op if its type is unsupported, an operand or an attribute is
// missing or impossible, an operand is too small, a label is not a class, or a token is not in the
// vocabulary. Outputs may then be partly written.
template <typename Scalar>
void RunOp(const Op& op, std::span<const KernelRun> runs,
           std::span<const std::span<std::byte>> inputs,
           std::span<const std::span<std::byte>> outputs, uint64_t seed);

extern template void RunOp<float>(const Op&, std::span<const KernelRun>,
                                  std::span<const std::span<std::byte>>,
                                  std::span<const std::span<std::byte>>, uint64_t);
extern template void RunOp<double>(const Op&, std::span<const KernelRun>,
                                   std::span<const std::span<std::byte>>,
                                   std::span<const std::span<std::byte>>, uint64_t);

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_KERNELS_H_
