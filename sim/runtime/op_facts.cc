#include "sim/runtime/op_facts.h"

#include <fmt/format.h>

#include "traces/base/error.h"

namespace spillway {

OpTable::OpTable(const Trace& trace, const Liveness& liveness, const CostModel& cost) {
  entries_.reserve(trace.ops.size());
  const auto add_operands = [&](const std::vector<TensorId>& tensors) {
    for (const TensorId id : tensors) {
      operands_.push_back({liveness.Root(id), liveness.Offset(id), trace.tensor(id).size});
    }
    return static_cast<uint32_t>(operands_.size());
  };
  Duration total;
  for (const Op& op : trace.ops) {
    Entry entry;
    entry.batch = op.batch;
    entry.traffic = op.traffic();
    entry.type = op.type;
    entry.inputs = static_cast<uint32_t>(operands_.size());
    entry.outputs = add_operands(op.inputs);
    entry.scratch = add_operands(op.outputs);
    entry.end = add_operands(op.scratch);
    entry.first_slot = static_cast<uint32_t>(kernels_.size());
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      kernels_.push_back(cost.Kernels(op, slot, op.batch));
      const Duration slowest = kernels_.back().back().time;
      if (slowest > kLongestIteration - total) {
        throw InputError(
            fmt::format("op '{}': slot '{}' takes up to {}, after {} of the ops before it; an "
                        "iteration of '{}' "
                        "may take {} in all",
                        op.name, op.slots[slot].name, FormatDuration(slowest),
                        FormatDuration(total), trace.name, FormatDuration(kLongestIteration)));
      }
      total += slowest;
    }
    entry.end_slot = static_cast<uint32_t>(kernels_.size());
    entries_.push_back(entry);
  }
}

}  // namespace spillway
