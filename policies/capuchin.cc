// Tensor access driven memory management (Peng et al., ASPLOS 2020): one measured iteration, then
// guided iterations.
//
// - Measured execution (section 4.2): nothing is planned. When a request finds no room, the storage
//   that was accessed longest ago is swapped out. It comes back when it is accessed again. This is
//   the passive mode.
// - The policy (section 4.4): as many bytes are to be saved as the measured run swapped out. Only
//   storages count whose longest stretch without an access lies over an op at which memory ran out.
//   Storages whose copies hide are swapped first, in the order of their *free time*. That is the
//   time from the end of the copy out to the latest begin of the copy back, on a link that carries
//   one copy in each direction. The others follow by the bytes that they save per second of
//   recomputation, given the storages that are dropped already. Each of these is swapped or
//   recomputed, whichever exposes less time.
// - A swap-in begins at the *in-trigger*, the last op that begins early enough. If the copy still
//   ends too late, feedback moves it ahead by 5 % of its time (section 4.4.1).
// - A swapped-out storage is released when a request finds no room, the oldest first. Guided
//   execution falls back on passive mode.
//
// An access is an op. Its time is the sum of the kernel times before it; the paper, too, removes
// the stalls of passive mode. The measured iteration and the iterations of feedback are trial runs
// here, because decisions may not depend on a clock. The fastest of these runs is kept. A
// convolution takes the fastest algorithm that fits when it runs. Parameters are not swapped.

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/plan/facts.h"
#include "policies/registry.h"
#include "sim/core/report.h"

namespace spillway::policies {
namespace {

enum class Treatment : uint8_t { kNone, kSwap, kRecompute };

struct Decided {
  Treatment treatment = Treatment::kNone;
  Duration swap_in;  // for kSwap: when the copy back is to begin
};

// Executes decisions, with passive mode as the last resort. Without decisions it is passive mode.
class CapuchinRun final : public Policy {
 public:
  CapuchinRun(const KernelChooser& chooser, std::shared_ptr<const JointFacts> facts = nullptr,
              std::vector<Decided> decided = {})
      : chooser_(chooser), given_facts_(std::move(facts)), decided_(std::move(decided)) {}

  void Plan(PolicyContext& context) override {
    facts_ = given_facts_ ? given_facts_ : std::make_shared<const JointFacts>(context);
    const size_t ops = context.trace().ops.size();
    decided_.resize(context.trace().tensors.size());
    leave_.assign(ops, {});
    triggered_.assign(ops, {});
    std::vector<TensorId> swapped;
    for (const TensorId id : facts_->movable()) {
      if (Of(id).treatment == Treatment::kNone) continue;
      leave_[Index(facts_->GapOf(id)->left)].push_back(id);
      if (Of(id).treatment == Treatment::kSwap) swapped.push_back(id);
    }
    std::ranges::stable_sort(swapped, {}, [&](TensorId id) { return Of(id).swap_in; });
    for (const TensorId id : swapped) triggered_[Index(TriggerOf(id))].push_back(id);
  }

  void BeforeOp(PolicyContext& context, OpId op) override {
    const bool begins = op == OpId{0} && !context.recomputing();
    if (begins) preparing_.clear();
    preparing_.push_back(op);
    if (!begins) return;
    accesses_.clear();
    oldest_ = 0;
    last_access_.assign(context.trace().tensors.size(), 0);
    for (size_t i = 0; i < last_access_.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const bool is_input = context.trace().tensor(id).kind == TensorKind::kInput;
      if (is_input && context.liveness().Root(id) == id) NoteAccess(id);
    }
    leaving_.clear();
    coming_.clear();
  }

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(KernelChoice::kGreedy, context, op);
  }

  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (context.recomputing()) return;
    coming_.insert(coming_.end(), triggered_[Index(op)].begin(), triggered_[Index(op)].end());
    // A storage that finds no room waits, and all that were triggered after it wait, too.
    while (!coming_.empty()) {
      const TensorId next = coming_.front();
      const bool outside = context.Where(next) == Residency::kOutside;
      if (outside && facts_->GapOf(next)->needed > op) {
        if (!context.Prefetch(next)) return;
        Consider(next);
      }
      std::erase(leaving_, next);
      coming_.erase(coming_.begin());
    }
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    preparing_.pop_back();
    for (const TensorId id : context.liveness().Storages(op)) {
      if (!StaysOnDevice(context.trace().tensor(id).kind)) NoteAccess(id);
    }
    if (context.recomputing()) return;
    for (const TensorId id : leave_[Index(op)]) {
      if (Of(id).treatment == Treatment::kRecompute) {
        context.Evict(id);
      } else if (context.Offload(id)) {
        leaving_.push_back(id);
      }
    }
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    for (auto oldest = leaving_.begin(); oldest != leaving_.end(); ++oldest) {
      if (!context.Release(*oldest)) continue;
      leaving_.erase(oldest);
      return true;
    }
    // Every other storage that cannot leave now has another access before it can.
    for (const OpId op : preparing_) {
      for (const TensorId id : context.liveness().Storages(op)) Consider(id);
    }
    while (oldest_ < accesses_.size() && !MayLeave(context, oldest_)) ++oldest_;
    for (size_t access = oldest_; access < accesses_.size(); ++access) {
      if (!MayLeave(context, access)) continue;
      const TensorId id = accesses_[access];
      if (Of(id).treatment == Treatment::kRecompute && context.Evict(id)) return true;
      if (context.Offload(id) && context.Release(id)) return true;
    }
    return false;
  }

 private:
  const Decided& Of(TensorId id) const { return decided_[Index(id)]; }

  void NoteAccess(TensorId id) {
    last_access_[Index(id)] = accesses_.size();
    accesses_.push_back(id);
  }

  // Moves `oldest_` back so that it is not behind the last access of the storage.
  void Consider(TensorId id) { oldest_ = std::min(oldest_, last_access_[Index(id)]); }

  // Returns true if the access is the last one of its storage, and the storage is on the device,
  // not pinned, and used again.
  bool MayLeave(const PolicyContext& context, size_t access) const {
    const TensorId id = accesses_[access];
    if (last_access_[Index(id)] != access || context.Pinned(id)) return false;
    const Residency where = context.Where(id);
    return (where == Residency::kDevice || where == Residency::kBoth) && context.NextUse(id);
  }

  // Returns the last op in the gap that starts early enough, or the first op in it if none does.
  OpId TriggerOf(TensorId id) const {
    const Gap& gap = *facts_->GapOf(id);
    auto op = Index(gap.needed) - 1;
    while (op > Index(gap.left) + 1 && facts_->StartOf(static_cast<OpId>(op)) > Of(id).swap_in)
      --op;
    return static_cast<OpId>(op);
  }

  const KernelChooser chooser_;
  const std::shared_ptr<const JointFacts> given_facts_;
  std::shared_ptr<const JointFacts> facts_;
  std::vector<Decided> decided_;                          // by tensor
  std::vector<std::vector<TensorId>> leave_, triggered_;  // by op
  std::vector<TensorId> leaving_, coming_;                // oldest first
  std::vector<OpId>
      preparing_;  // an op, and the ops that run again for it; their operands may leave
  std::vector<TensorId> accesses_;   // this iteration's; the inputs, which arrive, come first
  std::vector<size_t> last_access_;  // by tensor: the index in `accesses_`
  size_t oldest_ = 0;  // no earlier access is the last one of a storage that may leave
};

// Makes the decisions from the measured run.
class PolicyMaker {
 public:
  PolicyMaker(const JointFacts& facts, const Report& measured)
      : facts_(facts),
        decided_(facts.trace().tensors.size()),
        relied_on_(decided_.size()),
        landed_(decided_.size()) {
    std::vector<bool> counted(decided_.size());
    for (const Decision& decision : measured.decisions) {
      if (decision.verb != Verb::kRelease || !decision.done) continue;
      if (short_at_.empty() || short_at_.back() < decision.op) short_at_.push_back(decision.op);
      if (counted[Index(decision.tensor)]) continue;
      counted[Index(decision.tensor)] = true;
      wanted_ += SizeOf(decision.tensor);
    }
  }

  // Returns the decisions by tensor.
  std::vector<Decided> Make() {
    FindCandidates();
    SwapWhatHides();
    TakeCheapest();
    Travel();
    return std::move(decided_);
  }

 private:
  Bytes SizeOf(TensorId id) const { return facts_.trace().tensor(id).size; }
  Duration CopyTime(Direction direction, TensorId id) const {
    return facts_.cost().CopyTime(direction, SizeOf(id));
  }
  Duration LeftAt(TensorId id) const {
    const OpId left = facts_.GapOf(id)->left;
    return facts_.StartOf(left) + facts_.TimeOf(left);
  }
  Duration NeededAt(TensorId id) const { return facts_.StartOf(facts_.GapOf(id)->needed); }
  Duration FreeTime(TensorId id) const {
    return NeededAt(id) - CopyTime(Direction::kToDevice, id) -
           (LeftAt(id) + CopyTime(Direction::kToHost, id));
  }
  Treatment& Of(TensorId id) { return decided_[Index(id)].treatment; }

  void FindCandidates() {
    for (const TensorId id : facts_.movable()) {
      const Gap& gap = *facts_.GapOf(id);
      const auto at = std::ranges::upper_bound(short_at_, gap.left);
      if (at != short_at_.end() && *at < gap.needed) candidates_.push_back(id);
    }
    by_left_ = by_needed_ = candidates_;
    std::ranges::stable_sort(by_left_, {}, [&](TensorId id) { return LeftAt(id); });
    std::ranges::stable_sort(by_needed_, std::greater(), [&](TensorId id) { return NeededAt(id); });
  }

  // Schedules the copies of all swapped storages: out as early and back as late as the other copies
  // allow. Returns the time by which the latest copy back is too late.
  Duration Travel() {
    Duration exposed, free;
    for (const TensorId id : by_left_) {
      if (Of(id) != Treatment::kSwap) continue;
      free = std::max(free, LeftAt(id)) + CopyTime(Direction::kToHost, id);
      landed_[Index(id)] = free;
    }
    Duration taken = Duration::Max();
    for (const TensorId id : by_needed_) {
      if (Of(id) != Treatment::kSwap) continue;
      taken = std::min(taken, NeededAt(id)) - CopyTime(Direction::kToDevice, id);
      decided_[Index(id)].swap_in = taken;
      exposed = std::max(exposed, landed_[Index(id)] - taken);
    }
    return exposed;
  }

  // Returns the time by which copies would be later if this storage were swapped, too.
  Duration SwapOverhead(TensorId id) {
    Of(id) = Treatment::kSwap;
    const Duration after = Travel();
    Of(id) = Treatment::kNone;
    return after - exposed_;
  }

  void SwapWhatHides() {
    std::vector<TensorId> order = candidates_;
    std::ranges::stable_sort(order, std::greater(), [&](TensorId id) { return FreeTime(id); });
    for (const TensorId id : order) {
      if (saved_ >= wanted_ || FreeTime(id) < Duration()) return;
      if (SwapOverhead(id) > Duration()) continue;
      Of(id) = Treatment::kSwap;
      saved_ += SizeOf(id);
    }
  }

  // Returns the time of the ops that write the storage before it is needed, and of the ops that
  // write their inputs if these are dropped or have ended by then. Returns nullopt if one of these
  // ops cannot run again. With `count`, adds one in `relied_on_` for each storage that it relies
  // on.
  std::optional<Duration> RecomputeTime(TensorId storage, bool count = false) {
    const Liveness& liveness = facts_.liveness();
    const OpId at = facts_.GapOf(storage)->needed;
    std::vector<TensorId> open{storage};
    std::vector<bool> seen(decided_.size());
    seen[Index(storage)] = true;
    Duration time;
    for (size_t i = 0; i < open.size(); ++i) {
      const auto writers = liveness.Writers(open[i]);
      if (writers.empty()) return std::nullopt;
      for (const OpId writer : writers) {
        if (writer >= at) break;
        if (!facts_.trace().op(writer).recomputable) return std::nullopt;
        time += facts_.TimeOf(writer);
        for (const TensorId input : facts_.trace().op(writer).inputs) {
          const TensorId id = liveness.Root(input);
          if (seen[Index(id)]) continue;
          seen[Index(id)] = true;
          const TensorKind kind = facts_.trace().tensor(id).kind;
          if (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState) continue;
          if (Of(id) == Treatment::kRecompute || *liveness.LastUse(id) < at) {
            open.push_back(id);
          } else if (count) {
            ++relied_on_[Index(id)];
          }
        }
      }
    }
    return time;
  }

  // Returns the time to recompute the storage, once for itself and once for each dropped storage
  // that is recomputed from it.
  std::optional<Duration> TimeAgain(TensorId id) {
    const std::optional<Duration> once = RecomputeTime(id);
    if (!once) return std::nullopt;
    return *once * (1 + relied_on_[Index(id)]);
  }

  // Takes the storages that save most bytes per second of recomputation first. Dropping other
  // storages only makes a recomputation longer.
  void TakeCheapest() {
    using Entry = std::pair<double, TensorId>;  // seconds per byte
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    const auto entry = [&](TensorId id) {
      const std::optional<Duration> time = TimeAgain(id);
      if (!time) return Entry(std::numeric_limits<double>::infinity(), id);
      return Entry(
          static_cast<double>(time->picoseconds()) / static_cast<double>(SizeOf(id).count()), id);
    };
    for (const TensorId id : candidates_) {
      if (Of(id) == Treatment::kNone) open.push(entry(id));
    }
    while (!open.empty() && saved_ < wanted_) {
      const TensorId id = open.top().second;
      open.pop();
      const Entry now = entry(id);
      if (!open.empty() && now > open.top()) {
        open.push(now);
        continue;
      }
      const std::optional<Duration> time = TimeAgain(id);
      const Duration overhead = SwapOverhead(id);
      if (!time || overhead <= *time) {
        Of(id) = Treatment::kSwap;
        exposed_ += overhead;
      } else {
        RecomputeTime(id, /*count=*/true);
        Of(id) = Treatment::kRecompute;
      }
      saved_ += SizeOf(id);
    }
  }

  const JointFacts& facts_;
  std::vector<OpId> short_at_;  // ops at which memory ran out, ascending
  Bytes wanted_, saved_;
  std::vector<Decided> decided_;
  std::vector<int64_t> relied_on_;  // by tensor: the number of recomputations that read it
  std::vector<TensorId> candidates_, by_left_, by_needed_;
  std::vector<Duration> landed_;  // by tensor
  Duration exposed_;              // by the storages that are swapped so far
};

class CapuchinPolicy final : public ForwardingPolicy {
 public:
  CapuchinPolicy(int64_t feedback, const KernelChooser& chooser)
      : feedback_(feedback), chooser_(chooser) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&,
                      const TrialRun& trial, const std::string&) override {
    chosen_ = std::make_unique<CapuchinRun>(chooser_);
    FactsProbe probe;
    const Report unlimited = trial(probe, Bytes::Unlimited(), {1});
    Preparation prepared{device.memory};
    std::optional<Duration> shortest;
    DecideIn(device.memory, trace, probe.facts, trial, prepared, shortest);
    // What fits in less memory is tried in more, if there may be something to gain.
    Bytes less = unlimited.metrics.peak_allocated;
    for (int i = 0; i < kLevels; ++i, less = Bytes(less.count() / 32 * 31)) {
      if (shortest && *shortest * kNear <= unlimited.metrics.iteration * (kNear + 1)) break;
      if (less < device.memory) DecideIn(less, trace, probe.facts, trial, prepared, shortest);
    }
    return prepared;
  }

 private:
  // A run is not improved that takes at most one part in so many longer than in unlimited memory.
  static constexpr int64_t kNear = 20;
  static constexpr int kLevels = 48;

  // Makes the decisions in the memory, and takes them if an iteration is shorter than `shortest`.
  void DecideIn(Bytes memory, const Trace& trace, const std::shared_ptr<const JointFacts>& facts,
                const TrialRun& trial, Preparation& prepared, std::optional<Duration>& shortest) {
    const auto take = [&](const Report& report, std::unique_ptr<Policy> policy) {
      if (!report.fits() || (shortest && report.metrics.iteration > *shortest)) return;
      if (shortest && report.metrics.iteration == *shortest && memory < prepared.memory) return;
      shortest = report.metrics.iteration;
      chosen_ = std::move(policy);
      prepared.memory = memory;
    };
    CapuchinRun passive(chooser_);
    const Report measured = trial(passive, memory, {1});
    std::vector<Decided> decided = PolicyMaker(*facts, measured).Make();
    for (int64_t round = 0; round <= feedback_; ++round) {
      CapuchinRun guided(chooser_, facts, decided);
      const Report report = trial(guided, memory, {1});
      if (!report.fits()) break;
      if (!shortest || report.metrics.iteration < *shortest) {
        take(report, std::make_unique<CapuchinRun>(chooser_, facts, decided));
      }
      if (!MoveAhead(trace, *facts, report, decided)) break;
    }
    take(measured, std::make_unique<CapuchinRun>(chooser_));
  }

  // Makes the copies begin earlier that kernels waited for. Returns false if there were none.
  static bool MoveAhead(const Trace& trace, const JointFacts& facts, const Report& report,
                        std::vector<Decided>& decided) {
    constexpr int64_t kStep = 20;  // the part of a copy's time, 5 %
    std::vector<bool> late(trace.tensors.size());
    std::vector<const TimelineEntry*> copies;
    Duration idle_from;
    for (const TimelineEntry& entry : report.timeline) {
      if (entry.kind == CommandKind::kToDevice) copies.push_back(&entry);
      if (entry.kind != CommandKind::kKernel) continue;
      for (size_t i = 0; i < entry.wait_count && entry.interval.start > idle_from; ++i) {
        const Wait& wait = report.waits[entry.first_wait + i];
        if (wait.cause != WaitCause::kFetch) continue;
        const auto copy = std::ranges::find(copies, wait.event, &TimelineEntry::event);
        if (copy != copies.end() && (*copy)->interval.end > idle_from) {
          late[Index((*copy)->tensor)] = true;
        }
      }
      idle_from = entry.interval.end;
    }
    bool moved = false;
    for (const TensorId id : facts.movable()) {
      Decided& swap = decided[Index(id)];
      if (!late[Index(id)] || swap.treatment != Treatment::kSwap) continue;
      const Duration copy = facts.cost().CopyTime(Direction::kToDevice, trace.tensor(id).size);
      swap.swap_in -= Duration::Picoseconds(copy.picoseconds() / kStep);
      moved = true;
    }
    return moved;
  }

  const int64_t feedback_;
  const KernelChooser chooser_;
};

std::unique_ptr<Policy> MakeCapuchinPolicy(Params& params) {
  const int64_t feedback =
      params.Integer("feedback", 20, 0, 1000,
                     "iterations after which the copies that came too late begin earlier");
  return std::make_unique<CapuchinPolicy>(feedback, ReadKernelChooser(params));
}

}  // namespace

void RegisterCapuchin(PolicyRegistry& registry) {
  registry.Add("capuchin",
               "one measured iteration, then swaps that hide behind kernels, and recomputation "
               "where they do not (Capuchin, section 4)",
               MakeCapuchinPolicy);
}

}  // namespace spillway::policies
