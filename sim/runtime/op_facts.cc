#include "sim/runtime/op_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

bool Names(std::span<const Touched> operands, TensorId id) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Touched& operand) { return operand.storage == id; });
}

}  // namespace

OpTable::OpTable(const Trace& trace, const Liveness& liveness, const CostModel& cost) {
  entries_.reserve(trace.ops.size());
  const auto add_operands = [&](const std::vector<TensorId>& tensors) {
    for (const TensorId id : tensors) {
      operands_.push_back({liveness.Root(id), liveness.Offset(id), trace.tensor(id).size});
    }
    return static_cast<uint32_t>(operands_.size());
  };
  // Appends the storages of the op for which `choose` returns true, and returns where they end.
  const auto list = [&](OpId op, const auto& choose) {
    std::ranges::copy_if(liveness.Storages(op), std::back_inserter(listed_), choose);
    return static_cast<uint32_t>(listed_.size());
  };
  Duration total;
  for (const Op& op : trace.ops) {
    Entry entry;
    entry.batch = op.batch;
    entry.traffic = op.traffic();
    entry.type = op.type;
    if (!op.slots.empty()) entry.arithmetic = op.slots.front().arithmetic;
    entry.collective = op.IsCollective();
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
                        "iteration of '{}' may take {} in all",
                        op.name, op.slots[slot].name, FormatDuration(slowest),
                        FormatDuration(total), trace.name, FormatDuration(kLongestIteration)));
      }
      total += slowest;
    }
    entry.end_slot = static_cast<uint32_t>(kernels_.size());
    entries_.push_back(entry);
    const auto id = static_cast<OpId>(entries_.size() - 1);
    // An op that writes only a part of a storage must keep the writes of earlier ops.
    const auto is_added_to = [&](TensorId storage) {
      return std::ranges::any_of(Outputs(id), [&](const Touched& output) {
        return output.storage == storage && output.size < trace.tensor(storage).size &&
               liveness.Writers(storage).front() < id;
      });
    };
    Entry& added = entries_.back();
    added.needed = static_cast<uint32_t>(listed_.size());
    added.kept = list(
        id, [&](TensorId storage) { return Names(Inputs(id), storage) || is_added_to(storage); });
    added.end_kept = list(id, [&](TensorId storage) {
      return Names(Inputs(id), storage) && !Names(Written(id), storage);
    });
  }
}

}  // namespace spillway::sim
