#include "backend/cpu/kernels.h"

#include <fmt/format.h>

#include "backend/cpu/operands.h"
#include "backend/cpu/stand_in.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::cpu {
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

std::byte* TakeOperand(const Op& op, std::span<const std::span<std::byte>> operands,
                       std::optional<size_t> i, std::string_view what, int64_t bytes) {
  SPILLWAY_CHECK(i.has_value());
  if (*i >= operands.size()) {
    throw InputError(fmt::format("op '{}' ({}) has {} {}s, needs {}", op.name, Name(op.type),
                                 operands.size(), what, *i + 1));
  }
  if (operands[*i].size() < static_cast<size_t>(bytes)) {
    throw InputError(fmt::format("op '{}' ({}): {} {} has {} bytes, needs {}", op.name,
                                 Name(op.type), what, *i, operands[*i].size(), bytes));
  }
  return operands[*i].data();
}

template <typename Scalar>
void RunOp(const Op& op, std::span<const KernelRun> runs,
           std::span<const std::span<std::byte>> inputs,
           std::span<const std::span<std::byte>> outputs, uint64_t seed) {
  if (op.recorded) {
    RunStandIn(HashBytes(std::as_bytes(std::span(op.name)), seed), inputs, outputs);
    return;
  }
  const Call<Scalar> call{op, runs, inputs, outputs, seed};
  RequireExecutable(op, "CPU");
  SPILLWAY_CHECK(RunProduct(call) || RunPooling(call) || RunNormalization(call) ||
                 RunSequence(call) || RunAttention(call) || RunPointwise(call) || RunUpdate(call));
}

template void RunOp<float>(const Op&, std::span<const KernelRun>,
                           std::span<const std::span<std::byte>>,
                           std::span<const std::span<std::byte>>, uint64_t);
template void RunOp<double>(const Op&, std::span<const KernelRun>,
                            std::span<const std::span<std::byte>>,
                            std::span<const std::span<std::byte>>, uint64_t);

}  // namespace spillway::cpu
