// Shared by the CPU kernels: an op with its operands, whose sizes are checked when they are used,
// and the entry point of each family of ops.

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

// Returns the product of `factors`, a number of elements. Throws `InputError` that names the op if
// a factor is negative or the product exceeds 2^56.
int64_t Product(const Op& op, std::initializer_list<int64_t> factors);
// Returns the start of operands[i]. Messages call the operand `what` ("input" or "output"). Throws
// `InputError` if the operand is missing or has fewer than `bytes` bytes. REQUIRES: `i` is not
// nullopt, which holds if the op's table row names the operand.
std::byte* TakeOperand(const Op& op, std::span<const std::span<std::byte>> operands,
                       std::optional<size_t> i, std::string_view what, int64_t bytes);

template <typename Scalar>
struct Call {
  const Op& op;
  std::span<const KernelRun> runs;  // empty: each slot runs on the whole batch
  std::span<const std::span<std::byte>> inputs;
  std::span<const std::span<std::byte>> outputs;
  uint64_t seed;

  // Return an operand of at least `elements` elements, or throw `InputError`. `part` has the
  // meaning that it has for `InputIndex`.
  const Scalar* Input(Role role, int64_t elements, size_t part = 0) const {
    return reinterpret_cast<const Scalar*>(TakeOperand(
        op, inputs, InputIndex(op, role, part), "input", elements * int64_t{sizeof(Scalar)}));
  }
  // Returns an operand of labels or tokens.
  const int32_t* Integers(Role role, int64_t elements) const {
    return reinterpret_cast<const int32_t*>(TakeOperand(op, inputs, InputIndex(op, role), "input",
                                                        elements * int64_t{sizeof(int32_t)}));
  }
  Scalar* Output(Role role, int64_t elements, size_t part = 0) const {
    return reinterpret_cast<Scalar*>(TakeOperand(op, outputs, OutputIndex(op, role, part), "output",
                                                 elements * int64_t{sizeof(Scalar)}));
  }
};

// Sets out[i] to `value`, or adds `value` to out[i] if `accumulate`.
template <typename Scalar>
void Store(Scalar* out, int64_t i, Scalar value, bool accumulate) {
  out[i] = accumulate ? out[i] + value : value;
}

// Writes the gradient of a parameter, or adds it if the op accumulates there. If the op has a fused
// update, writes the updated parameter instead. `gradient` has `count` elements.
template <typename Scalar>
void StoreParameterGradient(const Call<Scalar>& call, Role role, const Scalar* gradient,
                            int64_t count) {
  Scalar* out = call.Output(GradientOf(role), count);
  if (!call.op.Flag("fused_update")) {
    const bool accumulate = call.op.Accumulates(OutputIndex(call.op, GradientOf(role)).value());
    for (int64_t i = 0; i < count; ++i) Store(out, i, gradient[i], accumulate);
    return;
  }
  const Scalar* parameter = call.Input(role, count);
  const auto learning_rate = static_cast<Scalar>(call.op.NumberAttribute("learning_rate"));
  for (int64_t i = 0; i < count; ++i) out[i] = parameter[i] - learning_rate * gradient[i];
}

// Each function executes the op and returns true if the op's type belongs to its family; otherwise
// it returns false.
template <typename Scalar>
bool RunProduct(const Call<Scalar>& call);  // convolution.cc: conv2d, linear
template <typename Scalar>
bool RunPooling(const Call<Scalar>& call);  // max_pool2d, avg_pool2d
template <typename Scalar>
bool RunNormalization(const Call<Scalar>& call);  // lrn, batch_norm, softmax_loss
template <typename Scalar>
bool RunSequence(const Call<Scalar>& call);  // layer norm, RMS norm, embeddings, rotary, select
template <typename Scalar>
bool RunAttention(const Call<Scalar>& call);  // attention in one op or three, softmax
template <typename Scalar>
bool RunPointwise(const Call<Scalar>& call);  // activations, dropout, add, mul, fork, concat, rows
template <typename Scalar>
bool RunUpdate(const Call<Scalar>& call);  // sgd, adam, adamw, square_sum, clip

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_OPERANDS_H_
