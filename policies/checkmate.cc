// Optimal rematerialisation alone (Jain et al., MLSys 2020): nothing is copied out. An integer
// program (rematerialization.h) decides which values stay until when, and which are recomputed.
//
// A unit of the program is an op, together with the ops after it that work in place on its results.
// While there are more units than wanted, the two neighbours that take the least time together
// become one. Neighbours of which only one can run again, and would no longer, become one last. A
// program of few units is solved by a search; a larger one is relaxed and rounded. There are two
// programs, one with the workspaces of the fastest kernels and one with the least workspaces, and
// the schedule that is faster in a trial run is taken. The program counts bytes and no addresses:
// if blocks leave holes, the storage that is needed last is dropped, too. If no schedule is found,
// nothing is dropped, and the run is out of memory.

#include <algorithm>
#include <memory>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "policies/kernels/kernel_choice.h"
#include "policies/parts/forwarding_policy.h"
#include "policies/parts/rematerialization.h"
#include "policies/plan/facts.h"
#include "policies/registry.h"
#include "sim/core/report.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

using Drops = std::vector<std::vector<TensorId>>;  // by op

class CheckmateRun final : public Policy {
 public:
  // Without drops, everything is kept, or the run does not fit.
  explicit CheckmateRun(const KernelChooser& chooser, Drops drops = {})
      : chooser_(chooser), drops_(std::move(drops)) {}

  KernelPlan ChooseKernels(PolicyContext& context, OpId op) override {
    return chooser_.ByRule(KernelChoice::kGreedy, context, op);
  }

  void AfterOp(PolicyContext& context, OpId op) override {
    if (drops_.empty() || context.recomputing()) return;
    for (const TensorId id : drops_[Index(op)]) {
      if (context.Where(id) == Residency::kDevice) context.Evict(id);
    }
  }

  bool OnAllocFailure(PolicyContext& context, Bytes) override {
    if (drops_.empty()) return false;
    std::vector<std::pair<OpId, TensorId>> victims;
    for (size_t i = 0; i < context.trace().tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (context.Where(id) != Residency::kDevice || context.Pinned(id)) continue;
      if (const auto next = context.NextUse(id)) victims.emplace_back(*next, id);
    }
    std::ranges::sort(victims, std::greater());
    return std::ranges::any_of(victims,
                               [&](const auto& victim) { return context.Evict(victim.second); });
  }

 private:
  const KernelChooser chooser_;
  const Drops drops_;
};

// Turns a trace into units, and a schedule of units into the storages to drop after each op.
class Units {
 public:
  Units(const JointFacts& facts, size_t most)
      : facts_(facts), owners_(facts.trace().tensors.size()), shared_(owners_.size()) {
    Divide(most);
    for (size_t op = 0; op < unit_of_.size(); ++op) {
      for (const TensorId id : facts.liveness().Storages(static_cast<OpId>(op))) {
        std::optional<size_t>& owner = owners_[Index(id)];
        const TensorKind kind = facts.trace().tensor(id).kind;
        const bool made = !Persists(kind) && kind != TensorKind::kInput && again_[unit_of_[op]];
        if (!owner && made && *facts.liveness().FirstUse(id) == static_cast<OpId>(op)) {
          owner = unit_of_[op];
        }
        if (owner && *owner != unit_of_[op]) shared_[Index(id)] = true;
      }
    }
  }

  // Returns the problem with the workspaces of the fastest kernels, or with the least workspaces.
  RematerializationProblem Problem(bool fastest) const {
    const Trace& trace = facts_.trace();
    RematerializationProblem problem(again_.size());
    // Changes of the bytes alive at each op, without values: of all storages, and of the storages
    // that do not outlive their unit.
    std::vector<Bytes> fixed(trace.ops.size() + 1), inner(fixed.size());
    for (size_t i = 0; i < owners_.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      const auto uses = facts_.liveness().Uses(id);
      const Tensor& tensor = trace.tensors[i];
      if (facts_.liveness().Root(id) != id || (uses.empty() && !Persists(tensor.kind))) continue;
      const Bytes size = RoundUp(tensor.size, facts_.alignment());
      if (shared_[i]) {
        problem[*owners_[i]].value += size;
        continue;
      }
      const bool early = Persists(tensor.kind) || tensor.kind == TensorKind::kInput;
      const size_t from = early ? 0 : Index(uses.front());
      const size_t to = Persists(tensor.kind) ? trace.ops.size() : Index(uses.back()) + 1;
      for (auto* const changes : {&fixed, owners_[i] ? &inner : nullptr}) {
        if (changes == nullptr) continue;
        (*changes)[from] += size;
        (*changes)[to] -= size;
      }
    }
    Bytes alive, alive_inner;
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const auto op = static_cast<OpId>(i);
      RematerializedUnit& unit = problem[unit_of_[i]];
      const Bytes workspace = WorkspaceAt(trace.ops[i], fastest);
      alive += fixed[i];
      alive_inner += inner[i];
      unit.again = again_[unit_of_[i]];
      unit.time += facts_.TimeOf(op);
      unit.fixed = std::max(unit.fixed, alive + workspace);
      unit.extra = std::max(unit.extra, alive_inner + workspace);
      for (const TensorId id : facts_.liveness().Storages(op)) {
        if (shared_[Index(id)] && *owners_[Index(id)] != unit_of_[i]) {
          unit.reads.push_back(*owners_[Index(id)]);
        }
      }
    }
    for (RematerializedUnit& unit : problem) {
      std::ranges::sort(unit.reads);
      unit.reads.erase(std::unique(unit.reads.begin(), unit.reads.end()), unit.reads.end());
    }
    return problem;
  }

  // Returns, by op, the values that are there when the op's unit ends and not when the next one
  // begins.
  Drops DropsOf(const Retention& kept) const {
    Drops drops(unit_of_.size());
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (!shared_[i]) continue;
      for (size_t op = 0; op < unit_of_.size(); ++op) {
        const size_t unit = unit_of_[op];
        const bool ends = op + 1 == unit_of_.size() || unit_of_[op + 1] != unit;
        if (ends && *owners_[i] <= unit && !kept[unit + 1][*owners_[i]]) {
          drops[op].push_back(static_cast<TensorId>(i));
        }
      }
    }
    return drops;
  }

 private:
  static bool Persists(TensorKind kind) {
    return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
  }

  void Divide(size_t most) {
    struct Part {
      size_t ops = 0;
      bool again = false;
      Duration time;
    };
    const Trace& trace = facts_.trace();
    std::vector<Part> parts;
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      const auto op = static_cast<OpId>(i);
      const Part part{1, trace.ops[i].recomputable, facts_.TimeOf(op)};
      const bool in_place =
          !parts.empty() && parts.back().again == part.again &&
          std::ranges::all_of(trace.ops[i].outputs, [&](TensorId output) {
            const auto writers = facts_.liveness().Writers(facts_.liveness().Root(output));
            return Index(writers.front()) + parts.back().ops >= i && writers.front() != op;
          });
      if (in_place) {
        parts.back() = {parts.back().ops + 1, part.again, parts.back().time + part.time};
      } else {
        parts.push_back(part);
      }
    }
    while (parts.size() > most) {
      const auto loss = [&](size_t i) {
        const Part &first = parts[i], &second = parts[i + 1];
        return std::pair(first.again != second.again, first.time + second.time);
      };
      const size_t least =
          *std::ranges::min_element(std::views::iota(0UL, parts.size() - 1), {}, loss);
      Part& first = parts[least];
      const Part& second = parts[least + 1];
      first = {first.ops + second.ops, first.again && second.again, first.time + second.time};
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(least) + 1);
    }
    for (size_t unit = 0; unit < parts.size(); ++unit) {
      unit_of_.insert(unit_of_.end(), parts[unit].ops, unit);
      again_.push_back(parts[unit].again);
    }
  }

  // Returns the workspace of an op. Its slots run one after the other.
  Bytes WorkspaceAt(const Op& op, bool fastest) const {
    Bytes workspace;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      const auto kernels = facts_.cost().Kernels(op, slot, op.batch);
      const Kernel& kernel = kernels[fastest ? 0 : LeastWorkspace(kernels)];
      workspace = std::max(workspace, RoundUp(kernel.workspace, facts_.alignment()));
    }
    return workspace;
  }

  const JointFacts& facts_;
  std::vector<size_t> unit_of_;                // by op
  std::vector<bool> again_;                    // by unit: all of its ops can run again
  std::vector<std::optional<size_t>> owners_;  // by storage: its unit, if that can run again
  std::vector<bool> shared_;                   // by storage: it has an owner and outlives it
};

class CheckmatePolicy final : public ForwardingPolicy {
 public:
  CheckmatePolicy(size_t units, size_t searched, int64_t nodes, const KernelChooser& chooser)
      : units_(units), searched_(searched), nodes_(nodes), chooser_(chooser) {}

  Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                      const std::string&) override {
    FactsProbe probe;
    const Duration in_core = trial(probe, Bytes::Unlimited(), {1}).metrics.iteration;
    CheckmateRun keeping(chooser_);
    const Report kept_all = trial(keeping, device.memory, {1});
    chosen_ = std::make_unique<CheckmateRun>(chooser_);
    if (kept_all.fits() && kept_all.metrics.iteration <= in_core) return {device.memory};
    Duration shortest = kept_all.fits() ? kept_all.metrics.iteration : Duration::Max();
    const Units units(*probe.facts, units_);
    std::vector<RematerializationProblem> problems{units.Problem(true), units.Problem(false)};
    if (problems[0] == problems[1]) problems.pop_back();
    for (const RematerializationProblem& problem : problems) {
      const int64_t nodes = problem.size() <= searched_ ? nodes_ : 0;
      const auto kept = Rematerialize(problem, device.memory, nodes);
      if (!kept) continue;
      const Drops drops = units.DropsOf(*kept);
      CheckmateRun run(chooser_, drops);
      const Report report = trial(run, device.memory, {1});
      if (!report.fits() || report.metrics.iteration >= shortest) continue;
      shortest = report.metrics.iteration;
      chosen_ = std::make_unique<CheckmateRun>(chooser_, drops);
    }
    return {device.memory};
  }

 private:
  const size_t units_, searched_;
  const int64_t nodes_;
  const KernelChooser chooser_;
};

std::unique_ptr<Policy> MakeCheckmatePolicy(Params& params) {
  const int64_t units =
      params.Integer("units", 60, 2, 1000, "the most units that ops are merged into");
  const int64_t searched =
      params.Integer("searched", 24, 0, 60,
                     "the most units for which the integer program is solved; with more units "
                     "it is relaxed and rounded");
  const int64_t nodes = params.Integer(
      "nodes", 1000, 1, 1'000'000, "the most nodes that the search of an integer program visits");
#if !defined(SPILLWAY_HAVE_CBC) || !defined(SPILLWAY_HAVE_CLP)
  throw EnvironmentError("policy 'checkmate' needs CBC and Clp, and this build has not found them");
#endif
  return std::make_unique<CheckmatePolicy>(
      static_cast<size_t>(units), static_cast<size_t>(searched), nodes, ReadKernelChooser(params));
}

}  // namespace

void RegisterCheckmate(PolicyRegistry& registry) {
  registry.Add("checkmate",
               "what to keep and what to recompute, by an integer program; nothing moved "
               "(Checkmate, section 4)",
               MakeCheckmatePolicy);
}

}  // namespace spillway::policies
