// What the CPU kernels share: an op with its operands, checked as they are taken, and the families
// of ops, one source file each.

#ifndef SPILLWAY_BACKEND_CPU_OPERANDS_H_
#define SPILLWAY_BACKEND_CPU_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "traces/trace.h"

namespace spillway::cpu {

// The attribute. Throws `InputError` that names it and the op if it is missing, or, for the
// integer, not in [least, 2^31).
int64_t IntOf(const Op& op, std::string_view attribute, int64_t least = 0);
double NumberOf(const Op& op, std::string_view attribute);
// The number of elements that the factors make. Throws `InputError` that names the op if a factor
// is negative or the product is beyond 2^56.
int64_t Product(const Op& op, std::initializer_list<int64_t> factors);
// Whether the attribute is there and not 0.
bool Flag(const Op& op, std::string_view attribute);
// Whether outputs[output], the gradient of an activation, is added to.
bool Accumulates(const Op& op, size_t output);

// The first `bytes` bytes of operands[i]. Throws `InputError` if it is missing or smaller.
std::byte* TakeOperand(const Op& op, std::span<const std::span<std::byte>> operands, size_t i,
                       std::string_view what, int64_t bytes);

template <typename Scalar>
struct Call {
  const Op& op;
  std::span<const std::span<std::byte>> inputs;
  std::span<const std::span<std::byte>> outputs;
  uint64_t seed;

  // Operand i, of at least `elements` elements.
  const Scalar* Input(size_t i, int64_t elements) const {
    return reinterpret_cast<const Scalar*>(
        TakeOperand(op, inputs, i, "input", elements * int64_t{sizeof(Scalar)}));
  }
  Scalar* Output(size_t i, int64_t elements) const {
    return reinterpret_cast<Scalar*>(
        TakeOperand(op, outputs, i, "output", elements * int64_t{sizeof(Scalar)}));
  }
};

// out[i] = value, or out[i] += value.
template <typename Scalar>
void Store(Scalar* out, int64_t i, Scalar value, bool accumulate) {
  out[i] = accumulate ? out[i] + value : value;
}

// convolution.cc
template <typename Scalar>
void RunConv2d(const Call<Scalar>& call);
template <typename Scalar>
void RunLinear(const Call<Scalar>& call);
// pooling.cc: maximum and average
template <typename Scalar>
void RunPool2d(const Call<Scalar>& call);
// normalization.cc
template <typename Scalar>
void RunLrn(const Call<Scalar>& call);
template <typename Scalar>
void RunBatchNorm(const Call<Scalar>& call);
template <typename Scalar>
void RunSoftmaxLoss(const Call<Scalar>& call);
// pointwise.cc
template <typename Scalar>
void RunRelu(const Call<Scalar>& call);
template <typename Scalar>
void RunDropout(const Call<Scalar>& call);
template <typename Scalar>
void RunAdd(const Call<Scalar>& call);
template <typename Scalar>
void RunFork(const Call<Scalar>& call);
template <typename Scalar>
void RunConcat(const Call<Scalar>& call);
template <typename Scalar>
void RunSgd(const Call<Scalar>& call);

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_OPERANDS_H_
