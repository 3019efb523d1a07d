// The joint planner. It decides offloading, recomputation and algorithms together, by a search with
// trial runs; a trial run has confirmed every decision.
//
// Every other built-in policy is a candidate, with its defaults, with each algorithm, and with its
// parameters outside, so that none is faster in the same memory. What fits in less memory is a
// candidate, too. The policy `plan` follows a plan that an earlier search has found (`run --export
// plan`), without searching.

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/parts/in_parallel.h"
#include "policies/plan/bound.h"
#include "policies/plan/early_updates.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "policies/plan/plan_executor.h"
#include "policies/plan/search.h"
#include "policies/registry.h"
#include "sim/core/report.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::policies {
namespace {

// The named efforts, in trials. A trial of ResNet-50 takes about a millisecond on two cores.
constexpr std::array<std::pair<std::string_view, int64_t>, 3> kEfforts{
    {{"quick", 500}, {"default", 6000}, {"thorough", 30000}}};
// A trace with n times more ops than this gets n times fewer trials, because a trial takes n times
// longer.
constexpr int64_t kManyOps = 5000;
// If layers repeat, this number stands for `kManyOps`: the search then decides on many layers at
// once, and needs fewer trials. It gets at least one part in `kFewest` of the effort's trials.
constexpr int64_t kManyOpsOfCopies = 350;
constexpr int64_t kFewest = 10;

struct Effort {
  int64_t trials = 0;
  bool named = false;

  int64_t TrialsOf(const JointFacts& facts) const {
    if (!named) return trials;
    const bool repeat = facts.copies().layers_repeat;
    const int64_t many = repeat ? kManyOpsOfCopies : kManyOps;
    const auto ops = std::max(many, static_cast<int64_t>(facts.trace().ops.size()));
    return std::max(trials * many / ops, repeat ? trials / kFewest : 1);
  }
};

// Follows a plan, on which all of its decisions depend.
class PlannedPolicy : public ForwardingPolicy {
 protected:
  Preparation Follow(std::shared_ptr<const JointFacts> facts, JointPlan plan,
                     const KernelChooser& chooser, const Trace& trace, Device device,
                     const CostModel& cost, const TrialRun& trial) {
    device.memory = std::min(device.memory, plan.memory);
    plan.early_updates = reordered_ != nullptr;
    std::string text = FormatPlan(*facts, plan);
    const bool is_own = plan.policy.empty();
    if (is_own) {
      chosen_ = std::make_unique<PlanExecutor>(std::move(facts), std::move(plan), chooser);
    } else {
      PolicyRegistry registry;
      RegisterBuiltinPolicies(registry);
      chosen_ = registry.Make(plan.policy);
    }
    Preparation prepared = chosen_->Prepare(trace, device, cost, trial, {});
    if (is_own && reordered_) prepared.trace = *reordered_;
    prepared.plan = std::move(text);
    return prepared;
  }

  // Follows the plan in the document `text`; `origin` is its path in messages.
  Preparation FollowText(const std::string& text, const std::string& origin, const Trace& trace,
                         const Device& device, const CostModel& cost, const TrialRun& trial) {
    if (HasEarlyUpdates(text, origin)) {
      reordered_ = std::make_shared<const Trace>(WithEarlyUpdates(trace));
    }
    FactsProbe probe;
    trial(probe, Bytes::Unlimited(), {1, 1, reordered_});
    JointPlan plan = ParsePlan(text, origin, *probe.facts);
    const KernelChooser chooser = plan.micro ? KernelChooser(*plan.micro) : KernelChooser();
    return Follow(probe.facts, std::move(plan), chooser, trace, device, cost, trial);
  }

  std::shared_ptr<const Trace> reordered_;  // if updates are early; the facts are of this trace
};

constexpr const char* kImported = "the plan of the run before";  // its origin in messages

// If layers repeat, or there are more than `kManyOps` ops, the search ends with a plan that takes
// at most one part in `kEnough` longer than the bound, or than the iteration in core if that is
// more. Other policies are not tried then.
constexpr int64_t kEnough = 1000;

// A plan in less memory is one in more memory, too. Where parameters and state do not fit, plans by
// hand are few and far apart: with at least `kManyTrials` trials, the search and other policies are
// then also tried in those of `kLevels` memories that are less than the device's. Each is seven
// eighths of the one before.
constexpr int64_t kManyTrials = 100;
constexpr int kLevels = 10;

// So many shares of the optimizer state, and then of the parameters with all of the state, are
// tried outside. The best of each, by a trial that plans nothing else, is searched.
constexpr size_t kOutsideShares = 8;
// None is, if a plan with all of them inside takes at most one part in so many longer than the
// iteration in core, or, without state to leave, than the bound if it is more.
constexpr int64_t kNearBound = 50;

// Which parameters and states may live outside between their uses.
enum class Outside : uint8_t { kNone, kState, kWholeState, kAll };

// Returns the storages of a kind, in the order of their uses, or of a recorded program in the order
// in which `spillway_torch.fit` lets them leave; nothing if one op uses more than half of their
// bytes, so that they have to be there at once.
std::vector<TensorId> Streamable(const JointFacts& facts, TensorKind kind) {
  const Trace& trace = facts.trace();
  const auto is_one = [&](TensorId id) {
    const Tensor& tensor = trace.tensor(id);
    return tensor.kind == kind && tensor.movable;
  };
  std::vector<TensorId> found;
  std::vector<bool> seen(trace.tensors.size());
  Bytes all, most;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    Bytes at_once;
    for (const TensorId id : facts.liveness().Storages(static_cast<OpId>(i))) {
      if (!is_one(id)) continue;
      at_once += facts.Aligned(id);
      if (seen[Index(id)]) continue;
      seen[Index(id)] = true;
      found.push_back(id);
      all += facts.Aligned(id);
    }
    most = std::max(most, at_once);
  }
  if (most * 2 > all) return {};
  if (!trace.recording) return found;
  std::vector<TensorId> leaving;
  for (const size_t i : LeavingOrder(found.size())) leaving.push_back(found[i]);
  return leaving;
}

// Returns `before` with growing shares of the storages: of the first ones and, if `spread`, of
// those at equal distances.
std::vector<std::vector<TensorId>> SharesOf(std::span<const TensorId> ordered,
                                            const std::vector<TensorId>& before, bool spread) {
  std::vector<std::vector<TensorId>> sets{{}};
  for (size_t share = 1; share <= kOutsideShares && !ordered.empty(); ++share) {
    sets.push_back(before);
    const auto part = ordered.first((ordered.size() * share + kOutsideShares - 1) / kOutsideShares);
    sets.back().insert(sets.back().end(), part.begin(), part.end());
    if (!spread || share == kOutsideShares) continue;
    sets.push_back(before);
    for (size_t i = 0; i < ordered.size(); ++i) {
      if ((i + 1) * share / kOutsideShares > i * share / kOutsideShares) {
        sets.back().push_back(ordered[i]);
      }
    }
  }
  return sets;
}

// Returns the time, lengthened by one part in `part`.
Duration Longer(Duration time, int64_t part) {
  return Duration::Picoseconds(time.picoseconds() + time.picoseconds() / part);
}

// The first iteration represents the others if these take longer by at most one part in this many.
constexpr int64_t kAlike = 500;

class JointPolicy final : public PlannedPolicy {
 public:
  JointPolicy(const SearchOptions& options, const Effort& effort, bool early_updates,
              Outside outside)
      : options_(options), effort_(effort), early_updates_(early_updates), outside_(outside) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    if (!plan.empty()) return FollowText(plan, kImported, trace, device, cost, trial);
    if (early_updates_ && !trace.hooks) {  // a recorded program keeps its order
      reordered_ = std::make_shared<const Trace>(WithEarlyUpdates(trace));
      options_.reordered = reordered_;
    }
    FactsProbe probe;
    const Report unlimited = trial(probe, Bytes::Unlimited(), {1, 1, reordered_});
    const Duration in_core = unlimited.metrics.iteration;
    const int64_t trials = effort_.TrialsOf(*probe.facts);
    const bool ends_early = probe.facts->copies().layers_repeat || trace.ops.size() > kManyOps;
    JointPlan best(trace);
    std::optional<Duration> shortest;
    std::vector<Bytes> memories{device.memory};
    if (trials >= kManyTrials && device.memory < unlimited.bounds.layer) {
      std::ranges::copy(LevelsBelow(device.memory, unlimited.bounds.layer),
                        std::back_inserter(memories));
    }
    Duration enough = in_core;  // others are not tried if a plan is as fast as this
    if (outside_ == Outside::kWholeState) {
      options_.outside = Streamable(*probe.facts, TensorKind::kOptimizerState);
    }
    for (size_t i = 0; i < memories.size(); ++i) {
      const Bytes memory = memories[i];
      options_.trials = i == 0 ? trials : 1;
      if (ends_early && device.pools.size() <= 1) {
        options_.enough =
            Longer(std::max(in_core, JointBound(probe.facts->trace(), cost, memory)), kEnough);
        if (i == 0) enough = options_.enough;
      }
      if (shortest && *shortest <= enough) break;
      SearchIn(memory, probe.facts, trial, in_core, best, shortest);
    }
    // A recorded program has moves of its own, and can carry out only the decisions of another
    // policy's run. The bound holds for runs with all parameters and state inside.
    const auto near = [&] {
      const bool leaves = !Streamable(*probe.facts, TensorKind::kOptimizerState).empty();
      const Duration bound =
          leaves ? in_core
                 : std::max(in_core, JointBound(probe.facts->trace(), cost, device.memory));
      return shortest && *shortest <= Longer(bound, kNearBound);
    };
    const bool chooses = outside_ != Outside::kNone && outside_ != Outside::kWholeState;
    if (!trace.hooks && chooses && !near()) {
      SearchOutside(device.memory, trials, probe.facts, trial, in_core, best, shortest);
    }
    const bool may_others = !trace.hooks && outside_ == Outside::kAll;
    if (may_others && (!shortest || *shortest > enough)) {
      TryOthers(memories, trial, best, shortest);
    }
    best.micro = options_.chooser.batches();
    best.memory = std::min(device.memory, best.memory);
    return Follow(probe.facts, std::move(best), options_.chooser, trace, device, cost, trial);
  }

 private:
  // Returns the largest memories that are less than `memory`, of those that `floor` makes alone.
  static std::vector<Bytes> LevelsBelow(Bytes memory, Bytes floor) {
    std::vector<Bytes> levels;
    for (Bytes level = floor; std::ssize(levels) < kLevels && level > Bytes::MiB(1);
         level = Bytes(level.count() / 8 * 7)) {
      if (level < memory) levels.push_back(level);
    }
    return levels;
  }

  // Searches for a plan in the memory, and takes it if its iteration is shorter than `shortest`.
  void SearchIn(Bytes memory, const std::shared_ptr<const JointFacts>& facts, const TrialRun& trial,
                Duration in_core, JointPlan& best, std::optional<Duration>& shortest) {
    // If later iterations differ from the first, which can be due to the allocator, the search is
    // repeated with two iterations per trial.
    for (const int iterations : {1, 2}) {
      options_.iterations = iterations;
      auto found = SearchPlan(facts, trial, memory, in_core, options_);
      if (!found) break;
      found->memory = std::min(memory, found->memory);
      const auto judge = [&](int count) {
        return Judge(options_, {count, 1, reordered_}, [&](const TrialOptions& options) {
          PlanExecutor executor(facts, *found, options_.chooser);
          return trial(executor, found->memory, options);
        });
      };
      const auto steady = judge(0);
      if (steady && (!shortest || steady->time < *shortest)) {
        best = *found;
        shortest = steady->time;
      }
      if (steady && steady->time * kAlike <= judge(1)->time * (kAlike + 1)) break;
    }
  }

  // Searches for plans in which some states live outside, and for some in which all of them and
  // some parameters do.
  void SearchOutside(Bytes memory, int64_t trials, const std::shared_ptr<const JointFacts>& facts,
                     const TrialRun& trial, Duration in_core, JointPlan& best,
                     std::optional<Duration>& shortest) {
    const bool spread = !facts->trace().recording;
    const std::vector<TensorId> state = Streamable(*facts, TensorKind::kOptimizerState);
    std::vector<std::vector<TensorId>> chosen{
        FastestOutside(SharesOf(state, {}, spread), memory, facts, trial)};
    if (outside_ != Outside::kState) {
      const std::vector<TensorId> parameters = Streamable(*facts, TensorKind::kParameter);
      chosen.push_back(FastestOutside(SharesOf(parameters, state, spread), memory, facts, trial));
    }
    chosen.push_back(state);  // the trials know little of what is searched next
    std::ranges::sort(chosen);
    chosen.erase(std::ranges::unique(chosen).begin(), chosen.end());
    std::erase_if(chosen, [](const std::vector<TensorId>& set) { return set.empty(); });
    for (const std::vector<TensorId>& set : chosen) {
      options_.outside = set;
      const bool is_state = set == state;  // it is searched as with it alone
      options_.trials = is_state ? trials : std::max<int64_t>(trials / std::ssize(chosen), 1);
      SearchIn(memory, facts, trial, in_core, best, shortest);
    }
    options_.outside.clear();
  }

  // Returns the set with which the step is fastest if nothing else is planned; an empty one if it
  // then is as fast without.
  std::vector<TensorId> FastestOutside(const std::vector<std::vector<TensorId>>& sets, Bytes memory,
                                       const std::shared_ptr<const JointFacts>& facts,
                                       const TrialRun& trial) const {
    std::vector<Duration> times(sets.size(), kForever);
    InParallel(sets.size(), [&](size_t i) {
      JointPlan plan(facts->trace());
      plan.drops = options_.recompute;
      plan.memory = memory;
      for (const TensorId id : sets[i]) plan.storages[Index(id)].fate = Fate::kOutside;
      const auto judged = Judge(options_, {1, 1, reordered_}, [&](const TrialOptions& options) {
        PlanExecutor executor(facts, plan, options_.chooser);
        return trial(executor, memory, options);
      });
      if (judged) times[i] = judged->time;
    });
    return sets[static_cast<size_t>(std::ranges::min_element(times) - times.begin())];
  }

  // Tries all other policies, with each algorithm and with parameters inside and outside. One whose
  // default arguments do not suit the network does not count.
  void TryOthers(const std::vector<Bytes>& memories, const TrialRun& trial, JointPlan& best,
                 std::optional<Duration>& shortest) const {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    std::vector<std::string> others;
    for (const PolicyRegistry::Entry& entry : registry.entries()) {
      const PolicyTraits& traits = entry.traits;
      if (!traits.tried_by_default || traits.for_recordings) continue;
      others.push_back(entry.name);
      for (const ParamInfo& param : registry.Parameters(entry.name)) {
        if (param.name == "parameters") others.push_back(entry.name + ":parameters=outside");
        if (param.name != "algo" || param.initial == "auto") continue;
        others.push_back(entry.name + ":algo=memory");
        others.push_back(entry.name + ":algo=performance");
      }
    }
    std::vector<std::optional<Duration>> times(memories.size() * others.size());
    InParallel(times.size(), [&](size_t i) {
      try {
        const auto judged = Judge(options_, {}, [&](const TrialOptions& options) {
          return trial(*registry.Make(others[i % others.size()]), memories[i / others.size()],
                       options);
        });
        if (judged) times[i] = judged->time;
      } catch (const UsageError&) {
      }
    });
    for (size_t i = 0; i < times.size(); ++i) {
      if (!times[i] || (shortest && *times[i] >= *shortest)) continue;
      shortest = times[i];
      best.policy = others[i % others.size()];
      best.memory = memories[i / others.size()];
    }
  }

  SearchOptions options_;
  const Effort effort_;
  const bool early_updates_;
  const Outside outside_;
};

class PlanFilePolicy final : public PlannedPolicy {
 public:
  PlanFilePolicy(std::string path, std::string text)
      : path_(std::move(path)), text_(std::move(text)) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& trial, const std::string& plan) override {
    if (!plan.empty()) return FollowText(plan, kImported, trace, device, cost, trial);
    if (path_.empty()) throw UsageError("policy 'plan' needs a plan: plan:file=PATH");
    return FollowText(text_, path_, trace, device, cost, trial);
  }

 private:
  const std::string path_, text_;
};

Effort ReadEffort(Params& params) {
  const std::string text =
      params.Text("effort", "quick|default|thorough|TRIALS", "default",
                  "how many trial runs the search makes, in addition to one of each other policy");
  for (const auto& [name, trials] : kEfforts) {
    if (text == name) return {trials, /*named=*/true};
  }
  int64_t trials = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, trials);
  if (error != std::errc() || stop != end || trials < 1 || trials > 100'000'000) {
    throw UsageError("policy 'joint': effort '" + text +
                     "': quick, default, thorough or a number from 1 to 100000000 are valid");
  }
  return {trials};
}

double ReadSlowerLink(Params& params) {
  constexpr std::string_view kLink = "link:";
  const std::string text =
      params.Text("robust", "off|link:SHARE", "off",
                  "judges plans by the mean of their times with the whole link and with this "
                  "share of its bandwidth; each of the two is a trial");
  if (text == "off") return 1;
  double share = 0;
  const char* const end = text.data() + text.size();
  const size_t from = text.starts_with(kLink) ? kLink.size() : text.size();
  const auto [stop, error] = std::from_chars(text.data() + from, end, share);
  if (error != std::errc() || stop != end || !(share > 0 && share < 1)) {
    throw UsageError("policy 'joint': robust '" + text +
                     "': off and link:SHARE, a share between 0 and 1, are valid");
  }
  return share;
}

std::unique_ptr<Policy> MakeJointPolicy(Params& params) {
  SearchOptions options;
  const Effort effort = ReadEffort(params);
  options.offload = params.Flag("offload", true, "storages may be copied out");
  options.recompute = params.Flag("recompute", true, "storages may be dropped and recomputed");
  options.kernels = params.Flag("kernels", true,
                                "kernels are searched for; otherwise each op has the fastest "
                                "kernels that fit when it runs");
  options.chooser = ReadKernelChooser(params);
  options.slower_link = ReadSlowerLink(params);
  options.seed = static_cast<uint64_t>(params.Integer(
      "seed", 1, 0, std::numeric_limits<int64_t>::max(), "the seed of the walk at the end"));
  const bool early_updates =
      params.Choice("updates", "early", {"early", "late"},
                    "whether each parameter is updated as soon as nothing reads it any more, so "
                    "that its gradient need not stay, or all of them after the backward pass") ==
      "early";
  const auto outside = params.Enum<Outside>(
      "outside", "all",
      {{"none", Outside::kNone},
       {"state", Outside::kState},
       {"whole-state", Outside::kWholeState},
       {"all", Outside::kAll}},
      "what may live outside between the ops that use it: nothing, a share of the optimizer state, "
      "this state and no less, or state and parameters");
  return std::make_unique<JointPolicy>(options, effort, early_updates, outside);
}

std::unique_ptr<Policy> MakePlanPolicy(Params& params) {
  const std::string path =
      params.Text("file", "PATH", "", "a plan that `run --export plan` has written");
  return std::make_unique<PlanFilePolicy>(path, path.empty() ? std::string() : ReadFile(path));
}

}  // namespace

void RegisterJoint(PolicyRegistry& registry) {
  registry.Add(
      "joint",
      "offloading, recomputation and algorithms decided together, by a search with trial runs",
      MakeJointPolicy, {.tried_by_default = false, .fits_as = "joint:effort=1"});
  registry.Add("plan", "what `joint` has planned before, from a file; nothing is searched for",
               MakePlanPolicy, {.tried_by_default = false});
}

}  // namespace spillway::policies
