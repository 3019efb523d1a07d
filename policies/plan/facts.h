// The facts about a trace from which the joint planner decides: how long each op takes, and for
// each storage the stretch of the iteration in which its bytes can best serve other storages.

#ifndef SPILLWAY_POLICIES_PLAN_FACTS_H_
#define SPILLWAY_POLICIES_PLAN_FACTS_H_

#include <array>
#include <compare>
#include <memory>
#include <optional>
#include <vector>

#include "policies/plan/copies.h"
#include "sim/core/policy.h"
#include "traces/base/units.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

// Returns true for the kinds of tensors that live across iterations. They stay on the device, or
// are outside but while an op uses them.
inline bool StaysOnDevice(TensorKind kind) {
  return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
}
// Returns true iff a plan may move the tensor.
inline bool MayMove(const Tensor& tensor) { return tensor.movable && !StaysOnDevice(tensor.kind); }

// The longest stretch between two uses of a storage, by the time of the ops between them.
struct Gap {
  OpId written{};  // the op that wrote the contents that the storage has in the gap
  OpId left{};     // the last use before the gap
  OpId needed{};   // the first use after the gap
};

// An op's use of a storage that may leave the device.
struct Use {
  bool big = false;  // the storage has 64 KiB or more
  OpId op{};
  TensorId storage{};

  auto operator<=>(const Use&) const = default;
};

class JointFacts {
 public:
  // REQUIRES: the trace and the cost model of the context outlive the facts.
  explicit JointFacts(const PolicyContext& context);

  const Trace& trace() const { return *trace_; }
  Bytes alignment() const { return alignment_; }
  // Returns the tensor's size as a multiple of the alignment.
  Bytes Aligned(TensorId id) const { return RoundUp(trace_->tensor(id).size, alignment_); }
  const CostModel& cost() const { return *cost_; }
  const Liveness& liveness() const { return liveness_; }

  // Returns nullopt for a storage that stays where it is: parameters and optimizer state, a storage
  // that the program cannot do without, and one that is used once or only by ops next to one
  // another.
  const std::optional<Gap>& GapOf(TensorId storage) const { return gaps_[Index(storage)]; }
  // Storages with a gap, in the order of `Gap::written`, then by id.
  const std::vector<TensorId>& movable() const { return movable_; }
  // The copies among all ops and among `movable()`.
  const Copies& copies() const { return copies_; }
  // All uses in descending order: uses of big storages first, and of these the latest first.
  const std::vector<Use>& uses() const { return uses_; }
  // Returns the index in `uses()` at which the uses by `op` of storages of this size class begin.
  // The uses before it are by later ops or of big storages. Returns the number of uses if the
  // storage may not leave the device.
  size_t RankOf(TensorId storage, OpId op) const;

  // Returns the time of the op with the fastest kernels, right after the op before it; 0 for an op
  // of another lane than lane 0.
  Duration TimeOf(OpId op) const { return times_[Index(op)]; }
  // Returns the time of the op when it runs again.
  Duration AgainTimeOf(OpId op) const;
  // Returns the sum of the times of all ops before this one.
  Duration StartOf(OpId op) const { return starts_[Index(op)]; }
  // Returns the time of all ops that have written the storage when its gap begins, or nullopt if
  // one of these ops cannot run again. REQUIRES: the storage has a gap.
  std::optional<Duration> RecomputeTime(TensorId storage) const;

 private:
  std::optional<Gap> FindGap(TensorId storage) const;
  bool IsBig(TensorId id) const { return trace_->tensor(id).size >= Bytes::KiB(64); }

  const Trace* trace_;
  Bytes alignment_;
  const CostModel* cost_;
  const Liveness liveness_;
  std::vector<Duration> times_;
  std::vector<Duration> starts_;  // sums of `times_`
  std::vector<std::optional<Gap>> gaps_;
  std::vector<TensorId> movable_;
  Copies copies_;
  std::vector<Use> uses_;
  std::array<std::vector<size_t>, 2> ranks_;  // by op: the ranks of small and of big storages
};

// A policy that keeps everything, runs the fastest kernels, and stores the facts of its run.
class FactsProbe final : public Policy {
 public:
  void Plan(PolicyContext& context) override { facts = std::make_shared<JointFacts>(context); }

  std::shared_ptr<const JointFacts> facts;
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_FACTS_H_
