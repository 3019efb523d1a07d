#include "backend/cpu/kernels.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "backend/cpu/operands.h"
#include "traces/base/error.h"

namespace spillway {
namespace cpu {

int64_t IntOf(const Op& op, std::string_view attribute, int64_t least) {
  const int64_t value = op.IntAttribute(attribute);
  if (value < least || value > std::numeric_limits<int32_t>::max()) {
    throw InputError(fmt::format("op '{}' ({}): attribute '{}' is {}, expected {} to {}", op.name,
                                 Name(op.type), attribute, value, least,
                                 std::numeric_limits<int32_t>::max()));
  }
  return value;
}

double NumberOf(const Op& op, std::string_view attribute) {
  const std::optional<double> value = op.FindAttribute(attribute);
  if (!value) {
    throw InputError(
        fmt::format("op '{}' ({}) lacks the attribute '{}'", op.name, Name(op.type), attribute));
  }
  return *value;
}

int64_t Product(const Op& op, std::initializer_list<int64_t> factors) {
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product) || product > kMost) {
      throw InputError(
          fmt::format("op '{}' ({}): the attributes make a tensor of impossible size, {} elements",
                      op.name, Name(op.type), fmt::join(factors, " * ")));
    }
  }
  return product;
}

bool Flag(const Op& op, std::string_view attribute) {
  return op.FindAttribute(attribute).value_or(0) != 0;
}

bool Accumulates(const Op& op, size_t output) {
  const auto mask = static_cast<uint64_t>(op.FindAttribute("accumulate").value_or(0));
  return output < 64 && ((mask >> output) & 1) != 0;
}

std::byte* TakeOperand(const Op& op, std::span<const std::span<std::byte>> operands, size_t i,
                       std::string_view what, int64_t bytes) {
  if (i >= operands.size()) {
    throw InputError(fmt::format("op '{}' ({}) has {} {}s, needs {}", op.name, Name(op.type),
                                 operands.size(), what, i + 1));
  }
  if (operands[i].size() < static_cast<size_t>(bytes)) {
    throw InputError(fmt::format("op '{}' ({}): {} {} has {} bytes, needs {}", op.name,
                                 Name(op.type), what, i, operands[i].size(), bytes));
  }
  return operands[i].data();
}

}  // namespace cpu

template <typename Scalar>
void RunOp(const Op& op, std::span<const std::span<std::byte>> inputs,
           std::span<const std::span<std::byte>> outputs, uint64_t seed) {
  const cpu::Call<Scalar> call{op, inputs, outputs, seed};
  switch (op.type) {
    case OpType::kConv2d:
      return cpu::RunConv2d(call);
    case OpType::kLinear:
      return cpu::RunLinear(call);
    case OpType::kMaxPool2d:
    case OpType::kAvgPool2d:
      return cpu::RunPool2d(call);
    case OpType::kRelu:
      return cpu::RunRelu(call);
    case OpType::kLrn:
      return cpu::RunLrn(call);
    case OpType::kBatchNorm:
      return cpu::RunBatchNorm(call);
    case OpType::kDropout:
      return cpu::RunDropout(call);
    case OpType::kConcat:
      return cpu::RunConcat(call);
    case OpType::kAdd:
      return cpu::RunAdd(call);
    case OpType::kFork:
      return cpu::RunFork(call);
    case OpType::kSoftmaxLoss:
      return cpu::RunSoftmaxLoss(call);
    case OpType::kSgd:
      return cpu::RunSgd(call);
    case OpType::kInput:
    case OpType::kOther:
      break;
  }
  throw InputError(
      fmt::format("op '{}': the CPU backend cannot execute {} ops; supported: conv2d, linear, "
                  "maxpool2d, avgpool2d, relu, lrn, batchnorm, dropout, concat, add, fork, "
                  "softmax_loss, sgd",
                  op.name, Name(op.type)));
}

template void RunOp<float>(const Op&, std::span<const std::span<std::byte>>,
                           std::span<const std::span<std::byte>>, uint64_t);
template void RunOp<double>(const Op&, std::span<const std::span<std::byte>>,
                            std::span<const std::span<std::byte>>, uint64_t);

}  // namespace spillway
