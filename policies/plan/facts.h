// What the joint planner knows of a trace before it decides anything: how long each op takes, and
// for each storage the one stretch of the iteration in which nothing uses it that is worth giving
// its bytes to others.

#ifndef SPILLWAY_POLICIES_PLAN_FACTS_H_
#define SPILLWAY_POLICIES_PLAN_FACTS_H_

#include <array>
#include <compare>
#include <memory>
#include <optional>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/units.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Of tensors that no plan moves.
inline bool StaysOnDevice(TensorKind kind) {
  return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
}

// The longest stretch between two uses of a storage, by the time of the ops between them.
struct Gap {
  OpId written{};  // the op after which its contents of the gap are there
  OpId left{};     // its last use before
  OpId needed{};   // its first use after
};

// An op's use of a storage that may leave the device.
struct Use {
  bool big = false;  // the storage, of 64 KiB or more
  OpId op{};
  TensorId storage{};

  auto operator<=>(const Use&) const = default;
};

class JointFacts {
 public:
  // Trace and cost model of the context outlive the facts.
  explicit JointFacts(const PolicyContext& context);

  const Trace& trace() const { return *trace_; }
  Bytes alignment() const { return alignment_; }
  const CostModel& cost() const { return *cost_; }
  const Liveness& liveness() const { return liveness_; }

  // nullopt of what stays where it is: parameters and optimizer state, and what is used once, or by
  // ops next to one another only.
  const std::optional<Gap>& GapOf(TensorId storage) const { return gaps_[Index(storage)]; }
  // Storages with a gap, in the order of `Gap::written`, then by id.
  const std::vector<TensorId>& movable() const { return movable_; }
  // Descending: what an op uses late comes before what is used early, the small ones last.
  const std::vector<Use>& uses() const { return uses_; }
  // Before this one of them, the uses are not of a storage as big, or of later ops; their number if
  // the storage may not leave.
  size_t RankOf(TensorId storage, OpId op) const;

  // With the fastest kernels, behind the op before.
  Duration TimeOf(OpId op) const { return times_[Index(op)]; }
  // The sum of the times of the ops before.
  Duration StartOf(OpId op) const { return starts_[Index(op)]; }
  // Of the ops that had written a storage when its gap begins; nullopt if one of them cannot run
  // again.
  std::optional<Duration> RebuildTime(TensorId storage) const;

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
  std::vector<Use> uses_;
  std::array<std::vector<size_t>, 2> ranks_;  // of small and of big storages, by op
};

// Keeps everything, with the fastest kernels, and takes down the facts of its run.
class FactsProbe final : public Policy {
 public:
  void Plan(PolicyContext& context) override { facts = std::make_shared<JointFacts>(context); }

  std::shared_ptr<const JointFacts> facts;
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_FACTS_H_
