// The kernels of the CPU backend: execute any op of a trace on host memory.
//
// Plain and single-threaded; no choice of algorithm, no micro-batches. Supported: every op type
// that FORMAT.md gives a contract; a stand-in (stand_in.h) runs for others of recorded traces. What
// FORMAT.md leaves open is as in backend/cuda/kernels.h: average pooling divides by the window
// clipped to the padded input, the first maximum of a window takes the gradient, LRN divides alpha
// by the window size, the loss is the mean over the op's batch, dropout masks are
// `DropoutKeeps(seed, layer, element)`, SGD is m = momentum * m + (dw + weight_decay * w), w -=
// learning_rate * m. Deterministic on one machine: the same inputs give the same bits wherever the
// operands lie, in backward provided that they are aligned to 64 bytes. What a forward op puts out
// for some of its channels, or features, has the bits that it has among all. NaN is passed on, so
// that poisoned memory shows.

#ifndef SPILLWAY_BACKEND_CPU_KERNELS_H_
#define SPILLWAY_BACKEND_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/core/backend.h"
#include "traces/trace.h"

namespace spillway {

// Runs all slots of one op, in micro-batches as `runs` says where its type has a choice of kernels:
// filter gradients of the first overwrite, of the others are added, so that the bits are those of
// the whole batch, which empty `runs` stand for. Operands are in the contract's order, of `Scalar`
// (float or double) but the labels, which are int32; a span is exactly the tensor's elements, which
// tells the parameters of an sgd op apart. An operand that is an input and an output (accumulated,
// updated in place, an alias that the contract allows) is the same memory in both lists. Every
// element of an output is written, and none is read before unless it is an input too. Throws
// `InputError` that names the op if its type is unsupported, an operand or an attribute is missing
// or impossible, an operand is too small, or a label is no class; outputs may then be partly
// written.
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

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_KERNELS_H_
