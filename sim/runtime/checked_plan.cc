#include "sim/runtime/checked_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::sim {

void CheckedPlan::Take(OpId op_id, KernelPlan plan) {
  time_ = Duration();
  workspace_ = Bytes(0);
  if (plan.empty()) {
    runs_.clear();
    for (uint32_t slot = 0; slot < ops_.slots(op_id); ++slot) {
      runs_.push_back({slot, 0, ops_.batch(op_id)});
      Add(op_id, slot, ops_.kernels(op_id, slot).front());
    }
    return;
  }
  const Op& op = trace_.op(op_id);
  runs_ = std::move(plan);
  size_t slot = 0;
  int64_t left = op.batch;
  for (const KernelRun& run : runs_) {
    if (slot < op.slots.size() && left == 0) ++slot, left = op.batch;
    if (run.slot != slot || slot >= op.slots.size() || run.batch < 1 || run.batch > left) {
      throw PolicyError(fmt::format(
          "ChooseKernels({}): slot {} with batch {} does not continue slot {} with {} samples "
          "left",
          op.name, run.slot, run.batch, slot, left));
    }
    if (run.batch != op.batch && Holds(op, StepOf(op).whole_batch)) {
      throw PolicyError(
          fmt::format("ChooseKernels({}): the batch of this op cannot be split", op.name));
    }
    const auto candidates = run.batch == op.batch ? ops_.kernels(op_id, run.slot)
                                                  : cost_.Kernels(op, run.slot, run.batch);
    if (run.kernel >= candidates.size()) {
      throw PolicyError(fmt::format(
          "ChooseKernels({}): there is no kernel {} in slot {}, which has {} (numbered from 0)",
          op.name, run.kernel, op.slots[slot].name, candidates.size()));
    }
    left -= run.batch;
    Add(op_id, run.slot, candidates[run.kernel]);
  }
  if (slot + 1 != op.slots.size() || left != 0) {
    throw PolicyError(
        fmt::format("ChooseKernels({}): the plan ends in slot {} of {} with {} samples left",
                    op.name, slot, op.slots.size(), left));
  }
}

void CheckedPlan::Add(OpId op, uint32_t slot, const Kernel& kernel) {
  const Taken next{op, slot, &kernel};
  time_ += kernel.time;
  if (kernel.in_sequence > Duration() && IsWarm(next)) time_ -= kernel.in_sequence;
  last_ = next;
  workspace_ = std::max(workspace_, kernel.workspace);
}

bool CheckedPlan::IsWarm(const Taken& next) const {
  return last_.kernel != nullptr && last_.slot == next.slot &&
         last_.kernel->algorithm == next.kernel->algorithm &&
         (last_.op == next.op || Alike(trace_, liveness_, last_.op, next.op));
}

}  // namespace spillway::sim
