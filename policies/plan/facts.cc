#include "policies/plan/facts.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace spillway::policies {
JointFacts::JointFacts(const PolicyContext& context)
    : trace_(&context.trace()),
      alignment_(context.device().alignment),
      cost_(&context.cost()),
      liveness_(context.trace()),
      starts_{Duration()},
      gaps_(context.trace().tensors.size()) {
  for (size_t i = 0; i < trace_->ops.size(); ++i) {
    Duration time;
    for (size_t slot = 0; slot < trace_->ops[i].slots.size(); ++slot) {
      time += context.kernels(static_cast<OpId>(i), slot).front().time;
    }
    if (i > 0 && trace_->ops[i].slots.size() == 1 &&
        Alike(*trace_, liveness_, static_cast<OpId>(i - 1), static_cast<OpId>(i))) {
      time -= context.kernels(static_cast<OpId>(i), 0).front().in_sequence;
    }
    if (trace_->ops[i].lane != 0) time = Duration();  // it runs beside the ops of lane 0
    times_.push_back(time);
    starts_.push_back(starts_.back() + time);
  }
  for (size_t i = 0; i < gaps_.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness_.Root(id) != id) continue;
    gaps_[i] = FindGap(id);
    if (gaps_[i]) movable_.push_back(id);
    if (!MayMove(trace_->tensor(id))) continue;
    for (const OpId op : liveness_.Uses(id)) uses_.push_back({IsBig(id), op, id});
  }
  std::ranges::sort(uses_, std::greater());
  for (const bool big : {false, true}) {
    std::vector<size_t>& ranks = ranks_[big ? 1 : 0];
    for (size_t i = 0; i < trace_->ops.size(); ++i) {
      const auto is_before = [&](const Use& use) {
        return std::tuple(use.big, use.op) > std::tuple(big, static_cast<OpId>(i));
      };
      const auto at = std::ranges::partition_point(uses_, is_before);
      ranks.push_back(static_cast<size_t>(at - uses_.begin()));
    }
  }
  std::ranges::sort(movable_, {},
                    [this](TensorId id) { return std::tuple(GapOf(id)->written, id); });
  copies_ = FindCopies(*trace_, liveness_, movable_);
}

std::optional<Gap> JointFacts::FindGap(TensorId storage) const {
  if (!MayMove(trace_->tensor(storage))) return std::nullopt;
  const auto uses = liveness_.Uses(storage);
  std::optional<Gap> longest;
  Duration length;
  for (size_t i = 0; i + 1 < uses.size(); ++i) {
    if (Index(uses[i]) + 1 == Index(uses[i + 1])) continue;
    const Duration time = starts_[Index(uses[i + 1])] - starts_[Index(uses[i]) + 1];
    if (longest && time <= length) continue;
    longest = {uses[i], uses[i], uses[i + 1]};
    length = time;
  }
  if (!longest) return std::nullopt;
  const auto writers = liveness_.Writers(storage);
  const auto after = std::ranges::upper_bound(writers, longest->left);
  longest->written = after == writers.begin() ? uses.front() : *std::prev(after);
  return longest;
}

Duration JointFacts::AgainTimeOf(OpId op) const {
  const auto& recorded = trace_->op(op).recorded;
  return recorded && recorded->again ? recorded->again->time : TimeOf(op);
}

size_t JointFacts::RankOf(TensorId storage, OpId op) const {
  if (!MayMove(trace_->tensor(storage))) return uses_.size();
  return ranks_[IsBig(storage) ? 1 : 0][Index(op)];
}

std::optional<Duration> JointFacts::RecomputeTime(TensorId storage) const {
  Duration time;
  bool written = false;
  for (const OpId op : liveness_.Writers(storage)) {
    if (op > GapOf(storage)->left) break;
    if (!trace_->op(op).recomputable) return std::nullopt;
    time += AgainTimeOf(op);
    written = true;
  }
  return written ? std::optional(time) : std::nullopt;
}

}  // namespace spillway::policies
