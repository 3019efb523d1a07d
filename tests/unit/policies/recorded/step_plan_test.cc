// Tests of plans that a recorded program carries out, on `HookedChain`: an op takes 10 ns and a
// copy 10 ns.

#include "policies/recorded/step_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "policies/recorded/step_executor.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"
#include "traces/base/error.h"
#include "traces/format.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StepPlanTest : public ::testing::Test {
 protected:
  StepPlan PlanOf(const std::function<void(ScriptedPolicy&)>& script) {
    ScriptedPolicy policy;
    script(policy);
    const RunResult result = RunSim(trace_, FixedCost(), policy);
    EXPECT_THAT(result.violations, IsEmpty());
    return PlanFrom(result.report, places_, Bytes::Unlimited());
  }
  std::string Carry(std::unique_ptr<Policy> policy) {
    const RunResult result = RunSim(trace_, FixedCost(), *policy);
    EXPECT_THAT(result.violations, IsEmpty());
    return TimelineText(trace_, result.report);
  }
  std::string Format(const StepPlan& plan) {
    return FormatStepPlan(plan, trace_, places_, Bytes(100), "test", {});
  }
  std::string ErrorOf(const std::string& text) {
    try {
      ParseStepPlan(text, "plan.json", trace_, places_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }

  const Trace trace_ = HookedChain();
  const Liveness liveness_{trace_};
  const StepPlaces places_{trace_, liveness_};
};

void SendY1(ScriptedPolicy& policy) {
  policy.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f2") {
      EXPECT_TRUE(context.Offload(Find(context, "y1")));
      EXPECT_TRUE(context.Release(Find(context, "y1")));
    }
  };
  policy.before = [](PolicyContext& context, const std::string& op) {
    if (op == "b3") context.Prefetch(Find(context, "y1"));
  };
}

TEST_F(StepPlanTest, ReleasesAndPrefetchesAreWhereHooksAre) {
  const StepPlan plan = PlanOf(SendY1);
  ASSERT_EQ(plan.storages.size(), 1);
  EXPECT_EQ(plan.storages[0],
            (StepPlan::Storage{TensorId{1}, StepFate::kOffload, {{{2}, {3}, {4}}}}));
}

// The policy sends y1 after f2, where the program has started the copy before f2.
//
//   kernels    |f1|f2|f3|b3|b2|b1|
//   to host       |y1|
//   to device           |y1|
TEST_F(StepPlanTest, ACopyStartsWhereAutogradSaves) {
  class Sends final : public Policy {
   public:
    void AfterOp(PolicyContext& context, OpId op) override {
      if (op != OpId{1}) return;
      context.Offload(TensorId{1});
      context.Release(TensorId{1});
    }
    void BeforeOp(PolicyContext& context, OpId op) override {
      if (op == OpId{3}) context.Prefetch(TensorId{1});
    }
  };
  EXPECT_EQ(Carry(CarriedOut(std::make_unique<Sends>())),
            "    0    10 compute f1\n"
            "   10    20 d2h y1\n"
            "   10    20 compute f2\n"
            "   20    30 compute f3\n"
            "   30    40 h2d y1\n"
            "   30    40 compute b3\n"
            "   40    50 compute b2\n"
            "   50    60 compute b1\n");
  const StepPlan plan = PlanOf(SendY1);
  EXPECT_EQ(Carry(CarriedOut(std::make_unique<Sends>())),
            Carry(std::make_unique<StepExecutor>(plan, places_, trace_.ops.size())));
}

TEST_F(StepPlanTest, APlanIsCarriedOutAsItIs) {
  auto executor = std::make_unique<StepExecutor>(StepPlan(), places_, trace_.ops.size());
  const Policy* const plan = executor.get();
  EXPECT_EQ(CarriedOut(std::move(executor)).get(), plan);
}

TEST_F(StepPlanTest, TheFirstLeaveDecidesHowAStorageComesBack) {
  const StepPlan plan = PlanOf([](ScriptedPolicy& policy) {
    policy.after = [](PolicyContext& context, const std::string& op) {
      if (op == "f2") {
        EXPECT_TRUE(context.Evict(Find(context, "y1")));
      }
    };
  });
  ASSERT_EQ(plan.storages.size(), 1);
  EXPECT_EQ(plan.storages[0].fate, StepFate::kEvict);
  EXPECT_THAT(Carry(std::make_unique<StepExecutor>(plan, places_, trace_.ops.size())),
              HasSubstr("   40    50 compute again f1\n"));
}

TEST_F(StepPlanTest, AFileHasThePlan) {
  const StepPlan plan = PlanOf(SendY1);
  EXPECT_EQ(ParseStepPlan(Format(plan), "plan.json", trace_, places_), plan);
  EXPECT_EQ(ParseStepPlan(Format({}), "plan.json", trace_, places_), StepPlan());
  EXPECT_THAT(Format(plan), HasSubstr("\"release\": 1"));  // the second of the positions
}

// `HookedChain` with three updates behind it, each of optimizer state of 10 bytes.
Trace WithUpdates() {
  Trace trace = HookedChain();
  for (int i = 1; i <= 3; ++i) {
    Tensor& state = trace.tensors.emplace_back(trace.tensors.front());
    state.name = fmt::format("s{}", i);
    state.kind = TensorKind::kOptimizerState;
    Op& update = trace.ops.emplace_back(trace.ops.back());
    update.name = fmt::format("u{}", i);
    update.phase = Phase::kUpdate;
    update.inputs = update.outputs = {static_cast<TensorId>(trace.tensors.size() - 1)};
  }
  trace.hooks->state = Duration();
  trace.Validate();
  return trace;
}

// While s1 is updated, s2 comes. Copies wait for the ops that were launched before them.
//
//   kernels     |b1|  |u1|u2|u3|
//   to device      |s1|s2|
//   to host              |s1|s2|
TEST(StepStateTest, StateComesForItsUpdateAndLeaves) {
  const Trace trace = WithUpdates();
  const Liveness liveness(trace);
  const StepPlaces places(trace, liveness);
  ASSERT_EQ(places.state().size(), 3);
  StepPlan plan;
  plan.state = {places.state()[0], places.state()[1]};
  StepExecutor executor(plan, places, trace.ops.size());
  const RunResult result = RunSim(trace, FixedCost(), executor);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_THAT(TimelineText(trace, result.report), HasSubstr("   50    60 compute b1\n"
                                                            "   60    70 h2d s1\n"
                                                            "   70    80 h2d s2\n"
                                                            "   70    80 compute u1\n"
                                                            "   80    90 d2h s1\n"
                                                            "   80    90 compute u2\n"
                                                            "   90   100 d2h s2\n"
                                                            "   90   100 compute u3\n"));
  const std::string text = FormatStepPlan(plan, trace, places, Bytes(100), "test", {});
  EXPECT_EQ(ParseStepPlan(text, "plan.json", trace, places), plan);
  for (const char* name : {"y1", "s1", "nope"}) {
    std::string bad = text;
    bad.replace(bad.find("\"s2\""), 4, fmt::format("\"{}\"", name));
    EXPECT_THROW(ParseStepPlan(bad, "plan.json", trace, places), InputError) << name;
  }
  EXPECT_EQ(ParseTrace(FormatTrace(trace), "t.json"), trace);
}

TEST(StepStateTest, OnlyWhatTheProgramCanMoveIsState) {
  Trace trace = WithUpdates();
  trace.ops[5].inputs.push_back(trace.ops[6].inputs.front());  // backward uses s1, too
  trace.tensors.back().movable = false;
  const Liveness liveness(trace);
  EXPECT_EQ(StepPlaces(trace, liveness).state(), std::vector(trace.ops[7].inputs));
  trace.hooks->state.reset();
  EXPECT_THAT(StepPlaces(trace, liveness).state(), IsEmpty());
}

TEST_F(StepPlanTest, ErrorsNameThePlace) {
  const std::string good = Format(PlanOf(SendY1));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return ErrorOf(text);
  };
  EXPECT_THAT(with("\"y1\"", "\"x\""), HasSubstr("'x' is no storage that autograd saves"));
  EXPECT_THAT(with("\"offload\"", "\"send\""), HasSubstr("expected \"offload\" or \"evict\""));
  EXPECT_THAT(with("\"offload\"", "\"evict\""), HasSubstr("only a storage that is offloaded has"));
  EXPECT_THAT(with("\"release\": 1", "\"release\": 9"), HasSubstr("the step has no position 9"));
  EXPECT_THAT(with(trace_.name, "other"), HasSubstr("the plan is for 'other'"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("plan.json"));
}

}  // namespace
}  // namespace spillway::testing
