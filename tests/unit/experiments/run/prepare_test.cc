// Tests of allocators that try the run first.

#include "experiments/run/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "experiments/run/compression_plan.h"
#include "experiments/run/inputs.h"
#include "experiments/run/run.h"
#include "experiments/tools/measure/validation.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(testing::Residual(), {3, "torch", true})) {
    RegisterBuiltinPolicies(registry_);
  }

  // Returns a draft whose blocks have their places.
  Draft Placed(const std::string& allocator, Bytes memory, const PolicyChoice& policy) const {
    Case asked;
    asked.allocator = allocator;
    return DecidePlacement(
        asked,
        {Borrow(trace_), device_, Borrow(cost_), memory, asked.allocator.Undecided(), policy}, {});
  }
  Report Run(const std::string& allocator, Bytes memory, const std::string& policy) const {
    const Report report = Predict(Placed(allocator, memory, policy)).report;
    EXPECT_THAT(Check(trace_, report), IsEmpty());
    return report;
  }

  Device device_;
  RooflineCostModel cost_;
  Trace trace_;
  PolicyRegistry registry_;
};

TEST_F(ArenaTest, PlannedNeedsTheSumOfWhatIsLiveAndLittleMore) {
  for (const char* planned : {"planned", "planned:effort=quick", "planned:effort=normal"}) {
    for (const char* policy :
         {"network-wide", "liveness", "vdnn-all", "vdnn-conv:order=prefetch-first"}) {
      const Report report = Run(planned, Bytes::Unlimited(), policy);
      ASSERT_TRUE(report.fits()) << policy;
      EXPECT_TRUE(report.steady) << policy;
      EXPECT_LE(report.metrics.peak_reserved.count() * 100,
                report.metrics.peak_allocated.count() * 101)
          << policy << " " << planned;
    }
  }
}

TEST_F(ArenaTest, TheEffortOfPlannedIsInSteps) {
  const auto steps = [](const std::string& text) { return AllocatorChoice(text).planned()->steps; };
  EXPECT_LT(steps("planned:effort=quick"), steps("planned:effort=normal"));
  EXPECT_LT(steps("planned:effort=normal"), steps("planned:effort=thorough"));
  EXPECT_EQ(steps("planned"), steps("planned:effort=normal"));
  EXPECT_THROW(steps("planned:effort=most"), UsageError);
  EXPECT_THROW(Run("planned:effort=most", Bytes::Unlimited(), "liveness"), UsageError);
}

TEST_F(ArenaTest, PlannedDecidesAsItsRecordedRun) {
  const Report planned = Run("planned", Bytes::Unlimited(), "vdnn-all");
  EXPECT_EQ(planned.decisions, Run("stitched", Bytes::Unlimited(), "vdnn-all").decisions);
}

// A policy that searches before it runs, unless it is given the result of an earlier search.
class Searcher final : public Policy {
 public:
  explicit Searcher(int& searches) : searches_(searches) {}

  Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun&,
                      const std::string& plan) override {
    const std::string found = plan.empty() ? "search " + std::to_string(++searches_) : plan;
    return {device.memory, std::nullopt, found};
  }

 private:
  int& searches_;
};

class SearcherTest : public ::testing::Test {
 protected:
  // The trace has one op, so all allocators need the same memory and `auto` takes the first.
  SearcherTest()
      : trace_(testing::TraceBuilder()
                   .Tensor("x", TensorKind::kInput, 512)
                   .Tensor("y", TensorKind::kActivation, 512)
                   .Op("a", Phase::kForward, {"x"}, {"y"})
                   .Build()) {
    cost_.Set(trace_.ops[0].slots[0].signature,
              {{"only", Duration::Nanoseconds(10), {}, true, {}}});
    BackendFactory early = BackendFactories().Find(kSimulator);
    early.needs_footprint = true;
    backends_.Add("early", early);
  }

  Draft Drafted() const {
    return {
        Borrow(trace_), device_, Borrow(cost_), Bytes::Unlimited(), asked_.allocator.Undecided(),
        policy_};
  }

  int searches_ = 0;
  const PolicyChoice policy_{"searcher", [this] { return std::make_unique<Searcher>(searches_); }};
  Case asked_;
  const Device device_ = testing::NarrowDevice();
  const Trace trace_;
  testing::FixedCost cost_;
  BackendFactories backends_;  // one of the backends needs a footprint
};

TEST_F(SearcherTest, SearchesOnceForARunThatIsTriedFirst) {
  for (const auto& [allocator, most] : {std::pair("best-fit", 1), {"planned", 1}, {"auto", 40}}) {
    searches_ = 0;
    asked_.allocator = allocator;
    const Prepared prepared = Decide(asked_, Drafted());
    EXPECT_EQ(prepared.run.arena.plan() != nullptr, allocator == std::string("planned"));
    const int before = searches_;
    const Report report = lab::Run(prepared).report;
    EXPECT_EQ(searches_, std::max(before, 1)) << allocator;
    EXPECT_LE(searches_, most) << allocator;
    EXPECT_THAT(report.plan, StartsWith("search ")) << allocator;
  }
}

TEST_F(SearcherTest, SearchesOnceForARunWithCompression) {
  asked_.compress = ParseCompression("hidden:density=0.5");
  const Prepared prepared = Decide(asked_, Drafted());
  ASSERT_TRUE(prepared.run.compression->chosen);
  EXPECT_EQ(lab::Run(prepared).report.plan, "search 1");
  EXPECT_EQ(searches_, 1);
}

TEST_F(SearcherTest, SearchesOnceForABackendThatNeedsItsFootprint) {
  Draft run = Drafted();
  run.backend = "early";
  EXPECT_EQ(lab::Run(Decide(asked_, run, backends_), backends_).report.plan, "search 1");
  EXPECT_EQ(searches_, 1);
}

TEST_F(SearcherTest, SearchesOnceForAPredictionAndWhatIsMeasured) {
  Draft run = Drafted();
  run.backend = "early";
  const Validation validation = Validate(Decide(asked_, run, backends_), backends_);
  EXPECT_EQ(validation.measured.report.plan, "search 1");
  EXPECT_EQ(validation.predicted.report.plan, "search 1");
  EXPECT_EQ(searches_, 1);
}

// A prepared run comes from `Decide` alone, and stays as it is.
static_assert(!std::is_constructible_v<Prepared, Draft>);
static_assert(!std::is_assignable_v<Prepared&, Prepared>);
static_assert(!std::is_assignable_v<decltype((std::declval<Prepared&>().run.memory)), Bytes>);

// If a run fits with an online allocator, it also fits when it is planned.
TEST_F(ArenaTest, PlannedFitsWhereBestFitDoes) {
  const Bytes peak = Run("planned", Bytes::Unlimited(), "vdnn-all").metrics.peak_allocated;
  for (Bytes memory = peak - Bytes(8192); memory < peak * 2; memory += Bytes(4096)) {
    if (!Run("best-fit", memory, "vdnn-all").fits()) continue;
    EXPECT_TRUE(Run("planned", memory, "vdnn-all").fits()) << memory.count();
  }
}

// The first plan of most of these runs needs more than the memory.
TEST(Planned, StaysWithinTheMemory) {
  for (const auto& [policy, memory] :
       {std::pair("dtr", "10%"), {"dtr", "30%"}, {"capuchin", "5%"}}) {
    Case asked{"densenet(2,3,k=8):2"};
    asked.cost = "roofline";
    asked.memory = memory;
    asked.allocator = "planned:effort=quick";
    asked.policy = policy;
    const Prepared prepared = Prepare(asked, Inputs(asked));
    EXPECT_LE(lab::Run(prepared).report.metrics.peak_reserved, prepared.run.memory)
        << policy << memory;
  }
}

TEST_F(ArenaTest, ARunThatIsNotThePlannedOneFitsByBestFit) {
  Draft run = Placed("planned", Bytes::Unlimited(), "vdnn-all");
  run.policy = "network-wide";
  const Report report = Predict(run).report;
  EXPECT_TRUE(report.fits());
  EXPECT_THAT(Check(trace_, report), IsEmpty());
  EXPECT_EQ(report.decisions, Run("stitched", Bytes::Unlimited(), "network-wide").decisions);
}

TEST_F(ArenaTest, AutoIsNeverWorseThanWhatItTries) {
  const PolicyChoice orders =
      PolicyChoice::OneOf({"vdnn-all:order=derivative-first", "vdnn-all:order=prefetch-first"});
  const auto run = [&](const std::string& allocator) {
    return Predict(Placed(allocator, Bytes::Unlimited(), orders)).report.metrics;
  };
  const Metrics least = run("auto"), fastest = run("auto:by=time");
  for (const AllocatorInfo& info : AllocatorChoices()) {
    if (info.name == "auto") continue;
    for (const char* policy : {"vdnn-all", "vdnn-all:order=prefetch-first"}) {
      const Metrics other = Run(info.name, Bytes::Unlimited(), policy).metrics;
      EXPECT_LE(least.peak_reserved, other.peak_reserved) << info.name;
      EXPECT_LE(fastest.iteration, other.iteration) << info.name;
    }
  }
}

TEST_F(ArenaTest, AutoFallsBackWhereNothingFits) {
  EXPECT_EQ(Placed("auto", Bytes(512), "vdnn-all").arena.name(), "best-fit");
  EXPECT_THROW(Placed("auto:by=luck", Bytes(512), "vdnn-all"), UsageError);
}

TEST(CandidatesTest, EveryOrderIsTriedUnlessOneIsGiven) {
  const auto names = [](const PolicyChoice& policy) {
    std::vector<std::string> all;
    for (const PolicyChoice& candidate : policy.Candidates()) all.push_back(candidate.name());
    return all;
  };
  EXPECT_THAT(names("vdnn-all"),
              ElementsAre("vdnn-all:order=derivative-first", "vdnn-all:order=prefetch-first"));
  EXPECT_THAT(names("vdnn-all:algo=memory"),
              ElementsAre("vdnn-all:algo=memory,order=derivative-first",
                          "vdnn-all:algo=memory,order=prefetch-first"));
  EXPECT_THAT(names("vdnn-all:order=prefetch-first"), ElementsAre("vdnn-all:order=prefetch-first"));
  EXPECT_THAT(names("liveness"), ElementsAre("liveness"));
}

}  // namespace
}  // namespace spillway::testing
