// What the CPU kernels share: an op with its operands, checked as they are taken, and the families
// of ops, one source file each.

#ifndef SPILLWAY_BACKEND_CPU_OPERANDS_H_
#define SPILLWAY_BACKEND_CPU_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "sim/core/backend.h"
#include "traces/ops/op_table.h"

namespace spillway::cpu {

using enum Role;

// The number of elements that the factors make. Throws `InputError` that names the op if a factor
// is negative or the product is beyond 2^56.
int64_t Product(const Op& op, std::initializer_list<int64_t> factors);
// The first `bytes` bytes of operands[i]. Throws `InputError` if it is missing or smaller.
// REQUIRES: the op's row names the operand, so that there is an index.
std::byte* TakeOperand(const Op& op, std::span<const std::span<std::byte>> operands,
                       std::optional<size_t> i, std::string_view what, int64_t bytes);

template <typename Scalar>
struct Call {
  const Op& op;
  std::span<const KernelRun> runs;  // empty: each slot on its whole batch
  std::span<const std::span<std::byte>> inputs;
  std::span<const std::span<std::byte>> outputs;
  uint64_t seed;

  // An operand of at least `elements` elements; `part` as for `InputIndex`.
  const Scalar* Input(Role role, int64_t elements, size_t part = 0) const {
    return reinterpret_cast<const Scalar*>(TakeOperand(
        op, inputs, InputIndex(op, role, part), "input", elements * int64_t{sizeof(Scalar)}));
  }
  Scalar* Output(Role role, int64_t elements, size_t part = 0) const {
    return reinterpret_cast<Scalar*>(TakeOperand(op, outputs, OutputIndex(op, role, part), "output",
                                                 elements * int64_t{sizeof(Scalar)}));
  }
};

// out[i] = value, or out[i] += value.
template <typename Scalar>
void Store(Scalar* out, int64_t i, Scalar value, bool accumulate) {
  out[i] = accumulate ? out[i] + value : value;
}

// Each executes the op if its type is one of those named; false if it is another.
template <typename Scalar>
bool RunProduct(const Call<Scalar>& call);  // convolution.cc: conv2d, linear
template <typename Scalar>
bool RunPooling(const Call<Scalar>& call);
template <typename Scalar>
bool RunNormalization(const Call<Scalar>& call);  // and softmax_loss
template <typename Scalar>
bool RunPointwise(const Call<Scalar>& call);  // and what moves data

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_OPERANDS_H_
