// Tests of the joint planner. It is never slower than the plans that it chooses from, gives the
// same plan on any number of cores, and writes plans that read back as equal.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/other_links.h"
#include "experiments/run/run.h"
#include "policies/plan/bound.h"
#include "policies/plan/facts.h"
#include "policies/plan/plan.h"
#include "policies/plan/plan_executor.h"
#include "policies/plan/search.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/core/cost_model.h"
#include "sim/cost/roofline.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class JointTest : public ::testing::TestWithParam<Network (*)()> {
 protected:
  JointTest() : device_(testing::NarrowDevice()), cost_(device_) {
    RegisterBuiltinPolicies(registry_);
  }

  Outcome Play(const Trace& trace, Bytes memory, const std::string& policy) const {
    return testing::Simulate({Borrow(trace), device_, Borrow(cost_), memory},
                             *registry_.Make(policy));
  }
  Report Run(const Trace& trace, Bytes memory, const std::string& policy) const {
    return Play(trace, memory, policy).report;
  }

  // Returns the sum of the iteration times at full link bandwidth and at `share` of the bandwidth.
  Duration OnBothLinks(const Trace& trace, Bytes memory, const std::string& policy, double share) {
    const Draft setup{Borrow(trace), device_, Borrow(cost_), memory};
    const Draft slower = WithSlowerLinks(setup, share);
    return testing::Simulate(setup, *registry_.Make(policy)).report.metrics.iteration +
           testing::Simulate(slower, *registry_.Make(policy)).report.metrics.iteration;
  }

  // Returns the memory that lies `percent` of the way from the floor to the in-core peak.
  Bytes Memory(const Trace& trace, double percent) const {
    const Bytes peak = Run(trace, Bytes::Unlimited(), "liveness").metrics.peak_reserved;
    return MemoryAt(percent, LayerBound(trace, device_.alignment), peak, device_.alignment);
  }

  // Writes a plan to a file and returns the policy that reads it.
  std::string PolicyOf(const std::string& text) {
    const std::string path = directory_ / "plan.json";
    WriteFile(path, text);
    return "plan:file=" + path;
  }

  testing::TemporaryDirectory directory_;
  Device device_;
  RooflineCostModel cost_;
  PolicyRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(Networks, JointTest,
                         ::testing::Values(testing::Chain, testing::ForkJoin, testing::Residual,
                                           testing::Normalized, testing::Dense),
                         [](const auto& test) { return test.param().name(); });

TEST_P(JointTest, IsNeverSlowerThanAnotherPolicyInTheSameMemory) {
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  for (const double percent : {0, 10, 30, 50, 70, 100}) {
    const Bytes memory = Memory(trace, percent);
    const Report joint = Run(trace, memory, "joint:effort=300");
    std::optional<Duration> fastest;
    for (const PolicyRegistry::Entry& entry : registry_.entries()) {
      if (!entry.traits.tried_by_default || entry.traits.for_recordings) continue;
      const Report other = Run(trace, memory, entry.name);
      if (!other.fits()) continue;
      ASSERT_TRUE(joint.fits()) << entry.name << " at " << percent << " %";
      EXPECT_LE(joint.metrics.iteration, other.metrics.iteration)
          << entry.name << " at " << percent << " %";
      // On such small networks these policies can be as good.
      if (entry.name == "capuchin" || entry.name == "checkmate") continue;
      fastest = std::min(fastest.value_or(other.metrics.iteration), other.metrics.iteration);
    }
    if (percent == 30) {
      EXPECT_LT(joint.metrics.iteration * 100, *fastest * 95);
    }
  }
}

TEST_P(JointTest, ItsPlanGivesTheSameRun) {
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  for (const char* joint :
       {"joint:effort=300", "joint:effort=20,recompute=false", "joint:effort=50,micro=all"}) {
    const Bytes memory = Memory(trace, 40);
    const Report found = Run(trace, memory, joint);
    const Outcome outcome = Play(trace, memory, PolicyOf(found.plan));
    const Report& followed = outcome.report;
    EXPECT_EQ(followed.decisions, found.decisions);
    EXPECT_EQ(followed.placements, found.placements);
    EXPECT_EQ(followed.timeline, found.timeline);
    EXPECT_EQ(followed.plan, found.plan);
    EXPECT_THAT(Check(*outcome.trace, followed), IsEmpty());
  }
}

TEST_P(JointTest, APlanThatIsImportedIsFollowedWithoutASearch) {
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  const Bytes memory = Memory(trace, 30);
  const Report found = Run(trace, memory, "joint:effort=300");
  Draft setup{Borrow(trace), device_, Borrow(cost_), memory};
  setup.policy_plan = found.plan;
  const Report again =
      testing::Simulate(setup, *registry_.Make("joint:effort=1,updates=late")).report;
  EXPECT_EQ(again.decisions, found.decisions);
  EXPECT_EQ(again.timeline, found.timeline);
  EXPECT_EQ(again.plan, found.plan);
}

// The robust plans are faster in the sum over all networks. On a single network either search may
// be luckier.
TEST_F(JointTest, RobustPlansAreJudgedOnASlowerLinkToo) {
  Duration plain, robust;
  for (const auto network : {testing::Chain, testing::ForkJoin, testing::Residual,
                             testing::Normalized, testing::Dense}) {
    const Trace trace = LowerNetwork(network(), {8, "torch", true});
    const Bytes memory = Memory(trace, 20);
    const auto add = [&](Duration& sum, const std::string& joint) {
      sum += OnBothLinks(trace, memory, PolicyOf(Run(trace, memory, joint).plan), 0.5);
    };
    add(plain, "joint:effort=500,updates=late");
    add(robust, "joint:effort=1000,updates=late,robust=link:0.5");
  }
  EXPECT_LT(robust * 100, plain * 99);
}

// If another memory or allocator makes a plan unfit, the tensors needed last are given up.
TEST_P(JointTest, APlanIsFollowedInLessMemory) {
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  const Report found = Run(trace, Memory(trace, 60), "joint:effort=100");
  const Outcome followed = Play(trace, Memory(trace, 40), PolicyOf(found.plan));
  EXPECT_TRUE(followed.report.fits());
  EXPECT_THAT(Check(*followed.trace, followed.report), IsEmpty());
}

TEST_P(JointTest, APlanIsTheSameRunInMoreMemory) {
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  const Report found = Run(trace, Memory(trace, 40), "joint:effort=100");
  const Report followed = Run(trace, Memory(trace, 60), PolicyOf(found.plan));
  EXPECT_EQ(followed.placements, found.placements);
  EXPECT_EQ(followed.timeline, found.timeline);
}

TEST_P(JointTest, TrialsThatAreSkippedWouldNotHaveHelped) {
  class Searcher final : public Policy {
   public:
    Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                        const std::string&) override {
      FactsProbe probe;
      const Duration in_core = trial(probe, Bytes::Unlimited(), {1}).metrics.iteration;
      for (const bool skip : {false, true}) {
        std::atomic<int>& runs = skip ? few : all;
        const TrialRun counted([&](Policy& policy, Bytes memory, const TrialOptions& options) {
          ++runs;
          return trial(policy, memory, options);
        });
        const auto plan =
            SearchPlan(probe.facts, counted, device.memory, in_core, {.trials = 600, .skip = skip});
        plans.push_back(FormatPlan(*probe.facts, *plan));
      }
      return {device.memory};
    }
    std::atomic<int> all = 0, few = 0;
    std::vector<std::string> plans;
  };
  const Trace trace = LowerNetwork(GetParam()(), {8, "torch", true});
  int few = 0, all = 0;
  for (const double percent : {50, 80, 95}) {
    Searcher searcher;
    testing::Simulate({Borrow(trace), device_, Borrow(cost_), Memory(trace, percent)}, searcher);
    EXPECT_EQ(searcher.plans[0], searcher.plans[1]) << percent << " %";
    few += searcher.few;
    all += searcher.all;
  }
  EXPECT_LT(few, all);
}

// A policy that lets `joint` plan and passes each of its trials to `trial`, which may replace the
// result.
class Planner final : public Policy {
 public:
  using Trial = std::function<Report(Policy&, const std::function<Report()>& run)>;

  Planner(std::unique_ptr<Policy> joint, Trial trial)
      : joint_(std::move(joint)), trial_(std::move(trial)) {}

  Preparation Prepare(const Trace& trace, const Device& device, const CostModel& cost,
                      const TrialRun& run, const std::string& plan) override {
    const TrialRun watched([&](Policy& policy, Bytes memory, const TrialOptions& options) {
      return trial_(policy, [&] { return run(policy, memory, options); });
    });
    return {joint_->Prepare(trace, device, cost, watched, plan).memory};
  }

 private:
  const std::unique_ptr<Policy> joint_;
  const Trial trial_;
};

// Returns a trace of this many ops whose reads mirror their writes. All layers repeat if the ops
// are equal, and none do otherwise.
Trace LongTrace(int ops, bool equal) {
  testing::TraceBuilder builder;
  builder.Tensor("t0", TensorKind::kInput, 1000);
  for (int i = 1; i <= ops; ++i) {
    const int mirrored = std::min(i - 1, ops - i);
    builder.Tensor(fmt::format("t{}", i), TensorKind::kActivation, 1000)
        .Op(fmt::format("f{}", i), Phase::kForward,
            {fmt::format("t{}", i - 1), fmt::format("t{}", mirrored)}, {fmt::format("t{}", i)});
  }
  Trace trace = builder.Build();
  for (Op& op : trace.ops) op.slots[0].signature = equal ? "f" : op.name;
  return trace;
}

TEST_F(JointTest, NamedEffortsTryFewerPlansOfLongTraces) {
  const auto plans_of = [&](int ops, const std::string& effort, bool equal = false) {
    const Trace trace = LongTrace(ops, equal);
    std::atomic<int> plans = 0;
    Planner planner(registry_.Make("joint:effort=" + effort),
                    [&](Policy& policy, const std::function<Report()>& run) {
                      if (dynamic_cast<FactsProbe*>(&policy) != nullptr) return run();
                      if (dynamic_cast<PlanExecutor*>(&policy) != nullptr) ++plans;
                      Report slow;
                      slow.metrics.iteration = Duration::Milliseconds(1000);
                      return slow;
                    });
    testing::Simulate({Borrow(trace), device_, Borrow(cost_), Bytes::MiB(1)}, planner);
    return plans.load();
  };
  const int of_long = plans_of(10000, "quick");
  EXPECT_EQ(of_long, plans_of(10000, "250"));
  EXPECT_LT(of_long, plans_of(1000, "quick"));
  // Fewer trials suffice where layers repeat.
  EXPECT_EQ(plans_of(1500, "default", true), plans_of(1500, "1400", true));
  EXPECT_EQ(plans_of(4000, "default", true), plans_of(4000, "600", true));
  EXPECT_EQ(plans_of(300, "quick", true), plans_of(300, "500", true));
}

// Returns a training step of sixty equal layers.
Trace EqualLayers() {
  Network net("equal", {16, 16, 16});
  LayerNode x = net.image();
  for (int i = 0; i < 60; ++i) {
    x = net.ConvRelu(fmt::format("conv{}", i), x, ConvSpec::Square(16, 3, 1, 1));
  }
  net.SoftmaxLoss("softmax", x);
  return LowerNetwork(net, {8, "torch", true});
}

TEST_F(JointTest, PlansOfEqualLayersAreValid) {
  const Trace equal = EqualLayers();
  for (const double percent : {5, 10, 20, 40}) {
    const Bytes memory = Memory(equal, percent);
    const Outcome outcome = Play(equal, memory, "joint:effort=350");
    EXPECT_THAT(Check(*outcome.trace, outcome.report), IsEmpty());
  }
}

TEST_F(JointTest, WhereLayersRepeatOrOpsAreManyAPlanNearTheBoundEndsTheSearch) {
  // Returns the numbers of plans and of other runs that are tried if all plans take this multiple
  // of the bound.
  const auto tried = [&](const Trace& trace, const std::string& effort, double share) {
    const Bytes memory = Memory(trace, 90);
    const Duration bound = std::max(JointBound(trace, cost_, memory),
                                    Run(trace, Bytes::Unlimited(), "liveness").metrics.iteration);
    std::atomic<int> plans = 0, others = 0;
    Planner planner(registry_.Make("joint:effort=" + effort),
                    [&](Policy& policy, const std::function<Report()>& run) {
                      if (dynamic_cast<FactsProbe*>(&policy) != nullptr) return run();
                      ++(dynamic_cast<PlanExecutor*>(&policy) != nullptr ? plans : others);
                      Report report;
                      report.metrics.iteration = Duration::Picoseconds(
                          static_cast<int64_t>(static_cast<double>(bound.picoseconds()) * share));
                      return report;
                    });
    testing::Simulate({Borrow(trace), device_, Borrow(cost_), memory}, planner);
    return std::pair(plans.load(), others.load());
  };
  const Trace equal = EqualLayers();
  EXPECT_GT(tried(equal, "1000", 1.2).second, 0);
  const auto [plans, others] = tried(equal, "1000", 1.04);
  EXPECT_GT(others, 0);
  EXPECT_EQ(tried(equal, "1000", 1.0005).second, 0);
  EXPECT_LT(tried(equal, "1000", 1.0005).first, plans / 2);
  EXPECT_GT(tried(LongTrace(500, false), "1", 1.0005).second, 0);
  EXPECT_EQ(tried(LongTrace(5001, false), "1", 1.0005).second, 0);
  EXPECT_GT(tried(LongTrace(5001, false), "1", 1.2).second, 0);
}

TEST_F(JointTest, DoesOnlyWhatItMay) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  const Bytes memory = Memory(trace, 40);
  const Report copies = Run(trace, memory, "joint:effort=300,recompute=false");
  EXPECT_THAT(copies.plan, Not(HasSubstr("evict")));
  const Report recomputes = Run(trace, memory, "joint:effort=300,offload=false");
  EXPECT_THAT(recomputes.plan, Not(HasSubstr("prefetch")));
  const Report free = Run(trace, memory, "joint:effort=300,kernels=false");
  EXPECT_THAT(free.plan, Not(HasSubstr("algorithm")));
  // A narrower search may find slightly better plans because it goes deeper.
  EXPECT_LE(Run(trace, memory, "joint:effort=3000").metrics.iteration * 1000,
            std::min(copies.metrics.iteration, recomputes.metrics.iteration) * 1001);
}

// Gives each slot one kernel, whose workspace is larger than `ucudnn` allows.
class LargeWorkspaces final : public CostModel {
 public:
  std::vector<int64_t> Batches(const Op& op, size_t) const override { return {op.batch}; }
  std::span<const Kernel> Kernels(const Op&, size_t, int64_t) const override { return kernels_; }
  Duration CopyTime(Direction, Bytes) const override { return Duration::Microseconds(1); }
  std::string Provenance() const override { return "made up"; }

 private:
  const std::vector<Kernel> kernels_{{"only", Duration::Microseconds(50), Bytes::MiB(65)}};
};

TEST_F(JointTest, APolicyThatRefusesTheNetworkDoesNotCount) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  const LargeWorkspaces cost;
  const auto run = [&](const std::string& policy, Bytes memory) {
    return testing::Simulate({Borrow(trace), device_, Borrow(cost), memory},
                             *registry_.Make(policy))
        .report;
  };
  const Bytes peak = run("liveness", Bytes::Unlimited()).metrics.peak_reserved;
  const Bytes memory =
      MemoryAt(40, LayerBound(trace, device_.alignment) + Bytes::MiB(65), peak, device_.alignment);
  EXPECT_THROW(run("ucudnn", memory), UsageError);
  EXPECT_TRUE(run("joint:effort=30", memory).fits());
}

TEST_F(JointTest, StaysInCoreWhereThereIsRoom) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  const Report report = Run(trace, Bytes::GiB(1), "joint");
  EXPECT_EQ(report.metrics.iteration, Run(trace, Bytes::Unlimited(), "liveness").metrics.iteration);
  EXPECT_EQ(report.metrics.offloaded, Bytes(0));
  EXPECT_EQ(report.metrics.recomputed_ops, 0);
}

TEST_F(JointTest, APlanOfAnotherProgramNeedsNoDigest) {
  const Trace trace = LowerNetwork(testing::Chain(), {8, "torch", true});
  const Bytes memory = Memory(trace, 30);
  std::string plan = Run(trace, memory, "joint:effort=300").plan;
  const Duration planned = Run(trace, memory, PolicyOf(plan)).metrics.iteration;
  const size_t digest = plan.find("  \"trace_sha256\"");
  ASSERT_NE(digest, std::string::npos);
  plan.erase(digest, plan.find('\n', digest) + 1 - digest);
  EXPECT_EQ(Run(trace, memory, PolicyOf(plan)).metrics.iteration, planned);
}

TEST_F(JointTest, RefusesPlansThatAreWrongStaleOrForeign) {
  const Trace trace = LowerNetwork(testing::Chain(), {8, "torch", true});
  const Trace inference = LowerNetwork(testing::Chain(), {8, "torch", false});
  const Trace other = LowerNetwork(testing::Residual(), {8, "torch", true});
  const std::string plan =
      Run(trace, Memory(trace, 30), "joint:effort=300,recompute=false,outside=none").plan;
  ASSERT_THAT(plan, HasSubstr("\"offload\""));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = plan;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  struct Case {
    const Trace& trace;
    std::string text, message;
  };
  const std::vector<Case> cases{
      {other, plan,
       "plan.json:4:15: workload: the plan is for " + trace.name + ", and this is " + other.name},
      {inference, plan, "another trace of the name"},
      {trace, replaced("spillway-plan", "spillway-cake"), "expected \"spillway-plan\""},
      {trace, replaced("\"version\": 1", "\"version\": 2"), "unsupported version 2"},
      {trace, replaced("\"offload\"", "\"burn\""),
       "expected \"offload\", \"evict\" or \"outside\""},
      {trace, replaced("\"offload\"", "\"outside\""), "and no others, can be \"outside\""},
      {trace, replaced("\"tensor\": \"", "\"tensor\": \"no."), "the trace has no tensor"},
      {trace, replaced("\"prefetch\": \"", "\"prefetch\": \"no."), "the trace has no op"},
      {trace, replaced("\"fate\"", "\"fat\""), "unknown key 'fat'"},
      {trace, replaced("\"memory_bytes\": ", "\"memory_bytes\": -"), "memory_bytes: "},
      {trace, replaced("\"early\"", "\"soon\""), "updates: expected \"late\" or \"early\""},
      {trace, replaced("\"early\"", "\"late\""), "another trace of the name"},
      {trace, replaced("\"micro\": null", "\"micro\": null, \"drops\": 1"), "drops: expected"},
      {trace, replaced("\"micro\": null", "\"micro\": null, \"apart\": 1"), "apart: expected"},
      {trace, replaced("\"micro\": null", "\"micro\": \"some\""),
       "micro: expected null or one of undivided, powerOfTwo, all"},
      {trace, plan.substr(0, plan.size() / 2), "plan.json:"},
  };
  for (const Case& refused : cases) {
    try {
      Run(refused.trace, Bytes::GiB(1), PolicyOf(refused.text));
      ADD_FAILURE() << refused.message;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("plan.json"));
      EXPECT_THAT(error.what(), HasSubstr(refused.message));
    }
  }
  EXPECT_THROW(Run(trace, Bytes::GiB(1), "plan"), UsageError);
  EXPECT_THROW(registry_.Make("plan:file=" + (directory_ / "none.json").string()), InputError);
  EXPECT_THROW(registry_.Make("joint:effort=much"), UsageError);
  for (const char* robust : {"0.9", "link", "link:", "link:0", "link:1", "link:nan", "link:0.9x"}) {
    EXPECT_THROW(registry_.Make(fmt::format("joint:robust={}", robust)), UsageError) << robust;
  }
}

// Parameters and optimizer state of a transformer under AdamW, of which some have to leave.
TEST_F(JointTest, WhatLivesOutsideIsPlannedWithAllElse) {
  for (const auto network : {testing::Llama, testing::Gpt}) {
    const Trace trace = LowerNetwork(
        network(), {.batch = 2, .preset = "torch", .training = true, .optimizer = OpType::kAdamW});
    const Bytes peak = Run(trace, Bytes::Unlimited(), "liveness").metrics.peak_reserved;
    for (const int percent : {50, 80}) {
      const Bytes memory = RoundDown(Bytes(peak.count() / 100 * percent), device_.alignment);
      const Outcome outcome = Play(trace, memory, "joint:effort=30");
      const Report& joint = outcome.report;
      EXPECT_THAT(Check(*outcome.trace, joint), IsEmpty());
      bool any = false;
      for (const char* part : {"joint:effort=30,outside=none", "joint:effort=30,outside=state",
                               "liveness:parameters=outside"}) {
        const Report alone = Run(trace, memory, part);
        if (!alone.fits()) continue;
        any = true;
        ASSERT_TRUE(joint.fits()) << part << " in " << percent << " % of " << trace.name;
        EXPECT_LE(joint.metrics.iteration * 100, alone.metrics.iteration * 102)
            << part << " in " << percent << " % of " << trace.name;
      }
      EXPECT_TRUE(any) << percent << " % of " << trace.name;
      const Report again = Run(trace, memory, PolicyOf(joint.plan));
      EXPECT_EQ(again.timeline, joint.timeline);
      EXPECT_EQ(again.plan, joint.plan);
    }
    const Bytes half = RoundDown(Bytes(peak.count() / 2), device_.alignment);
    EXPECT_THAT(Run(trace, half, "joint:effort=30").plan, HasSubstr("\"outside\""));
    EXPECT_THAT(Run(trace, half, "joint:effort=30,outside=none").plan,
                Not(HasSubstr("\"outside\"")));
  }
}

// The plan keeps everything in too little memory. Storages that are given up return before the op
// that uses them.
TEST_F(JointTest, WhatIsGivenUpComesBackEarly) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  FactsProbe probe;
  testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, probe);
  const std::string policy = PolicyOf(FormatPlan(*probe.facts, JointPlan(trace)));
  int fetched = 0, early = 0;
  for (const double percent : {20, 40, 60, 80}) {
    const Report report = Run(trace, Memory(trace, percent), policy);
    ASSERT_TRUE(report.fits());
    EXPECT_THAT(Check(trace, report), IsEmpty());
    for (const TimelineEntry& copy : report.timeline) {
      if (copy.kind != CommandKind::kToDevice) continue;
      ++fetched;
      early += std::ranges::count(probe.facts->liveness().Storages(copy.op), copy.tensor) == 0;
    }
  }
  EXPECT_GT(fetched, 0);
  EXPECT_GT(early * 2, fetched) << "of " << fetched;
}

TEST_F(JointTest, WhatGivesWayIsDroppedWhereThatCostsLess) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  FactsProbe probe;
  testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, probe);
  JointPlan plan(trace);
  const std::string copying = FormatPlan(*probe.facts, plan);
  plan.drops = true;
  const std::string dropping = FormatPlan(*probe.facts, plan);
  for (const double percent : {40, 60, 80}) {
    const Report copied = Run(trace, Memory(trace, percent), PolicyOf(copying));
    const Report dropped = Run(trace, Memory(trace, percent), PolicyOf(dropping));
    ASSERT_TRUE(copied.fits() && dropped.fits()) << percent << " %";
    EXPECT_THAT(Check(trace, dropped), IsEmpty());
    EXPECT_EQ(copied.metrics.recomputed_ops, 0) << percent << " %";
    EXPECT_GT(dropped.metrics.recomputed_ops, 0) << percent << " %";
    EXPECT_LT(dropped.metrics.offloaded, copied.metrics.offloaded) << percent << " %";
  }
  const auto drops = [&](Bytes memory) {
    PlanExecutor executor(probe.facts, plan, {});
    testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), memory}, executor);
    return executor.dropped();
  };
  EXPECT_TRUE(drops(Memory(trace, 60)));
  EXPECT_FALSE(drops(Bytes::GiB(1)));
  plan.drops = false;
  EXPECT_FALSE(drops(Memory(trace, 60)));
}

TEST_F(JointTest, WhatLeavesLiesApartIfThePlanSaysSo) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  FactsProbe probe;
  testing::RunPolicy({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, probe);
  JointPlan plan(trace);
  plan.apart = true;
  std::map<TensorId, Hint> high;
  for (const TensorId id : probe.facts->movable()) {
    const bool leaves = high.size() % 2 == 1;
    if (leaves) plan.storages[Index(id)].fate = Fate::kOffload;
    plan.storages[Index(id)].prefetch = probe.facts->GapOf(id)->needed;
    high[id] = leaves ? Hint::kHigh : Hint::kLow;
  }
  const Report report = Run(trace, Bytes::GiB(1), PolicyOf(FormatPlan(*probe.facts, plan)));
  size_t placed = 0;
  for (const Placement& placement : report.placements) {
    const auto known = high.find(placement.tensor);
    if (placement.kind != PlacementKind::kAllocate || !placement.on_device() ||
        known == high.end()) {
      continue;
    }
    EXPECT_EQ(placement.hint, known->second) << trace.tensor(placement.tensor).name;
    ++placed;
  }
  EXPECT_GE(placed, high.size());
}

// x -> y -> z -> loss: y is idle from z's forward to its backward op, which needs z recomputed.
TEST_F(JointTest, WhatARecomputationReadsIsNeededForIt) {
  const Trace trace = LowerNetwork(testing::Residual(), {8, "torch", true});
  class Reader final : public Policy {
   public:
    void Plan(PolicyContext& context) override {
      const JointFacts facts(context);
      for (const TensorId id : facts.movable()) {
        JointPlan plan(context.trace());
        plan.storages[Index(id)].fate = Fate::kEvict;
        const auto writers = context.liveness().Writers(id);
        if (writers.empty() || !context.trace().op(writers[0]).recomputable) continue;
        for (const TensorId input : context.trace().op(writers[0]).inputs) {
          const TensorId read = context.liveness().Root(input);
          const auto& gap = facts.GapOf(read);
          const OpId at = facts.GapOf(id)->needed;
          if (read == id || !gap || gap->left >= at || gap->needed <= at) continue;
          plan.storages[Index(read)].fate = Fate::kOffload;
          EXPECT_EQ(NeedsOf(facts, plan)[Index(read)], at);
          plan.storages[Index(id)].fate = Fate::kKeep;
          EXPECT_EQ(NeedsOf(facts, plan)[Index(read)], gap->needed);
          ++tried;
          break;
        }
      }
    }
    int tried = 0;
  };
  Reader reader;
  testing::Simulate({Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, reader);
  EXPECT_GT(reader.tried, 2);
}

}  // namespace
}  // namespace spillway::testing
