// Tests of explanations, memory curves and exported traces of iterations small enough to draw.

#include "experiments/output/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "experiments/output/chrome_trace.h"
#include "experiments/output/memory_timeline.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Duration Ns(int64_t n) { return Duration::Nanoseconds(n); }

// A policy that calls `after` once an op has been issued.
class AfterPolicy final : public Policy {
 public:
  using Hook = std::function<void(PolicyContext&, const std::string& op)>;
  explicit AfterPolicy(Hook after) : after_(std::move(after)) {}
  void AfterOp(PolicyContext& context, OpId op) override {
    after_(context, context.trace().op(op).name);
  }

 private:
  Hook after_;
};

TensorId Find(const Trace& trace, const std::string& name) {
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (trace.tensors[i].name == name) return static_cast<TensorId>(i);
  }
  throw InputError("no tensor " + name);
}

const Suggestion* FindSuggestion(const StallExplanation& stall, RemedyKind kind) {
  for (const Suggestion& suggestion : stall.suggestions) {
    if (suggestion.remedy.kind == kind) return &suggestion;
  }
  return nullptr;
}

struct Explained {
  Report report;
  std::vector<StallExplanation> stalls;
};

Explained Explain(const Trace& trace, const CostModel& cost, const PolicyMaker& make,
                  const RunSettings& settings = {}, size_t limit = 10) {
  const Draft run{Borrow(trace), settings.device, Borrow(cost),    settings.memory,
                  "best-fit",    {"mine", make},  settings.options};
  Explained explained{Predict(run).report, {}};
  explained.stalls = ExplainStalls(
      trace, explained.report,
      [&](const StallRemedy& remedy) { return SimulateRemedy({}, run, remedy); }, limit);
  return explained;
}

PolicyMaker After(const AfterPolicy::Hook& hook) {
  return [hook] { return std::make_unique<AfterPolicy>(hook); };
}

// Explains a run in which x leaves after f1 and returns at its last use, b1.
Explained FetchOnDemand(const Trace& trace, const RunSettings& settings = {}, size_t limit = 10) {
  const auto hook = [&](PolicyContext& context, const std::string& op) {
    if (op != "f1") return;
    context.Offload(Find(trace, "x"));
    context.Release(Find(trace, "x"));
  };
  return Explain(trace, FixedCost(), After(hook), settings, limit);
}

// A policy that asks for what cannot be done, once for each reason.
class Refused final : public Policy {
 public:
  void BeforeLaunch(PolicyContext& context, OpId op) override {
    if (context.trace().op(op).name == "f2") context.Release(Find(context.trace(), "y1"));
  }
  void AfterOp(PolicyContext& context, OpId op) override {
    const std::string& name = context.trace().op(op).name;
    if (name == "f1") context.Release(Find(context.trace(), "x"));   // it has no copy
    if (name == "f1") context.Prefetch(Find(context.trace(), "x"));  // it is there
    if (name == "f2") context.Offload(Find(context.trace(), "x"));
    if (name == "f3") context.Offload(Find(context.trace(), "y1"));  // no room outside
    if (name == "b3") context.Offload(Find(context.trace(), "y1"));  // as before
  }
};

TEST(RefusedVerbsTest, AreCountedByReason) {
  RunSettings settings;
  settings.device.host_memory = Bytes(16);
  Refused policy;
  const Report report = RunSim(ChainTrace(), FixedCost(), policy, settings).report;
  EXPECT_EQ(FormatRefused(report),
            "\nVerbs of the policy that were refused: 2 offload (full), 1 release (pinned), "
            "1 release (unknown), 1 prefetch (unknown)\n");
  int64_t count = 0;
  for (const RefusedVerb& refused : CountRefused(report)) count += refused.count;
  EXPECT_EQ(count, std::ranges::count(report.decisions, false, &Decision::done));
  EXPECT_EQ(FormatRefused({}), "");
}

//   d2h      |x |
//   compute  |f1|f2|f3|b3|b2|    |b1|
//   h2d                     | x |        10 ns late: the copy should start during b2
TEST(ExplainTest, AFetchIsExplainedByItsCopy) {
  const Trace trace = ChainTrace();
  const auto [report, stalls] = FetchOnDemand(trace);
  ASSERT_EQ(stalls.size(), 1u);
  const StallExplanation& stall = stalls[0];
  EXPECT_EQ(stall.cause, StallCause::kFetch);
  EXPECT_EQ(trace.op(stall.op).name, "b1");
  EXPECT_EQ(stall.since, Ns(50));
  EXPECT_EQ(stall.length, Ns(10));
  EXPECT_EQ(stall.waited_for, "fetch of x (10 B, issued at b1, 10 ns)");
  EXPECT_EQ(stall.why_late, "the memory it fills was in use by b2 until 50 ns");

  const Suggestion* earlier = FindSuggestion(stall, RemedyKind::kStartEarlier);
  ASSERT_NE(earlier, nullptr);
  EXPECT_EQ(earlier->text, "with the prefetch of x at b2: 60 ns per iteration, 10 ns less");
  EXPECT_EQ(earlier->iteration, Ns(60));
  EXPECT_EQ(earlier->gain, Ns(10));
  EXPECT_EQ(trace.op(earlier->remedy.op).name, "b2");

  // Memory is sufficient, so more memory changes nothing.
  EXPECT_EQ(FindSuggestion(stall, RemedyKind::kMoreMemory), nullptr);
  // The copy takes as long as the stall, so no link is fast enough.
  EXPECT_EQ(FindSuggestion(stall, RemedyKind::kFasterLink), nullptr);
}

// The h2d link needs 10 ns for x, and the prefetch starts 4 ns of work too late. A link that copies
// 10 bytes in 6 ns removes the stall.
//   compute  |f1 10|f2 10|f3 10|b3 10|b2 6|   |b1|
//   h2d                              |  x  |
TEST(ExplainTest, ALinkThatIsFastEnoughIsNamed) {
  Trace trace = ChainTrace();
  trace.ops[4].slots[0].signature = "short";
  FixedCost cost;
  cost.Set("short", {{"default", Ns(6), Bytes(0), true}});
  const auto [report, stalls] =
      Explain(trace, cost, After([&](PolicyContext& context, const std::string& op) {
                const TensorId x = Find(trace, "x");
                if (op == "f1") context.Offload(x), context.Release(x);
                if (op == "b3") context.Prefetch(x);
              }));
  ASSERT_EQ(stalls.size(), 1u) << testing::TimelineText(trace, report);
  EXPECT_EQ(stalls[0].length, Ns(4));
  EXPECT_THAT(stalls[0].waited_for, HasSubstr("prefetch of x"));
  const Suggestion* link = FindSuggestion(stalls[0], RemedyKind::kFasterLink);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->remedy.link.bytes_per_second, 1'666'666'667);  // 10 bytes in 6 ns
  EXPECT_EQ(link->gain, Ns(4));
}

Trace WideSecondOp() {
  return TraceBuilder()
      .Tensor("x", TensorKind::kInput, 30)
      .Tensor("y1", TensorKind::kActivation, 10)
      .Tensor("y2", TensorKind::kActivation, 30)
      .Tensor("d", TensorKind::kGradient, 5)
      .Op("f1", Phase::kForward, {"x"}, {"y1"})
      .Op("f2", Phase::kForward, {"y1"}, {"y2"})
      .Op("b1", Phase::kBackward, {"x"}, {"d"})
      .Build();
}

// With no spare byte, y2 takes the memory of x, whose copy is slow.
//   d2h      |------x 30------|
//   compute  |f1|  (memory)   |f2|    (fetch)       |b1|
//   h2d                           |------x 30------|
TEST(ExplainTest, MemoryInUseIsExplainedByTheCopyThatReadsIt) {
  const Trace trace = WideSecondOp();
  RunSettings settings;
  settings.memory = Bytes(40);
  const auto [report, stalls] = FetchOnDemand(trace, settings);
  ASSERT_EQ(stalls.size(), 2u) << testing::TimelineText(trace, report);
  EXPECT_EQ(stalls[0].cause, StallCause::kFetch);
  const StallExplanation& stall = stalls[1];
  EXPECT_EQ(stall.cause, StallCause::kMemory);
  EXPECT_EQ(trace.op(stall.op).name, "f2");
  EXPECT_EQ(stall.length, Ns(20));
  EXPECT_EQ(stall.waited_for, "offload of x (30 B, issued at f1, 30 ns)");
  EXPECT_EQ(stall.why_late, "it started as soon as it was issued");
  EXPECT_EQ(FindSuggestion(stall, RemedyKind::kStartEarlier), nullptr);  // the copy began at 0
  // With 30 bytes more there is a free place for y2, but best fit still chooses the place of x.
  EXPECT_EQ(FindSuggestion(stall, RemedyKind::kMoreMemory), nullptr);
  const Suggestion* link = FindSuggestion(stall, RemedyKind::kFasterLink);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->remedy.link.bytes_per_second, 3'000'000'000);  // 30 bytes in the 10 ns of f1
  EXPECT_EQ(link->gain, Ns(20));
}

// Here x is released only when an allocation fails; the trace is the one above.
TEST(ExplainTest, MoreMemoryIsSuggestedWhereItHelps) {
  class OnDemand final : public Policy {
   public:
    void AfterOp(PolicyContext& context, OpId op) override {
      if (context.trace().op(op).name == "f1") context.Offload(Find(context.trace(), "x"));
    }
    bool OnAllocFailure(PolicyContext& context, Bytes) override {
      return context.Release(Find(context.trace(), "x"));
    }
  };
  const Trace trace = WideSecondOp();
  RunSettings settings;
  settings.memory = Bytes(40);
  const auto [report, stalls] = Explain(
      trace, FixedCost(), [] { return std::make_unique<OnDemand>(); }, settings);
  ASSERT_EQ(stalls.size(), 2u) << testing::TimelineText(trace, report);
  const Suggestion* memory = FindSuggestion(stalls[1], RemedyKind::kMoreMemory);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->remedy.memory, Bytes(30));
  EXPECT_EQ(memory->gain, Ns(50));  // nothing waits
}

// The last copy outlives the last op.
//   compute  |f1|..|b1|
//   d2h               |------|
TEST(ExplainTest, TheDrainIsExplainedByTheLastCopy) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("w", TensorKind::kParameter, 25)
                          .Tensor("y", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x", "w"}, {"y"})
                          .Build();
  RunSettings settings;
  settings.options.max_iterations = 1;
  const auto [report, stalls] = Explain(
      trace, FixedCost(),
      After([&](PolicyContext& context, const std::string&) { context.Offload(Find(trace, "w")); }),
      settings);
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_EQ(stalls[0].cause, StallCause::kDrain);
  EXPECT_EQ(stalls[0].command, std::nullopt);
  EXPECT_EQ(stalls[0].length, Ns(15));
  EXPECT_THAT(stalls[0].waited_for, HasSubstr("offload of w"));
}

// A fence makes f2 wait for a copy that f2 does not need.
//   d2h      |----x 30----|
//   compute  |f1| (fence) |f2|
TEST(ExplainTest, AFenceIsNamedWithWhatItCosts) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 30)
                          .Tensor("y1", TensorKind::kActivation, 10)
                          .Tensor("y2", TensorKind::kActivation, 10)
                          .Op("f1", Phase::kForward, {"x"}, {"y1"})
                          .Op("f2", Phase::kForward, {"y1"}, {"y2"})
                          .Op("b1", Phase::kBackward, {"y2", "x"}, {"y1"})
                          .Build();
  const auto [report, stalls] =
      Explain(trace, FixedCost(), After([&](PolicyContext& context, const std::string& op) {
                if (op != "f1") return;
                context.Offload(Find(trace, "x"));
                context.Fence();
              }));
  ASSERT_EQ(stalls.size(), 1u) << testing::TimelineText(trace, report);
  EXPECT_EQ(stalls[0].cause, StallCause::kFence);
  EXPECT_EQ(stalls[0].length, Ns(20));
  const Suggestion* fence = FindSuggestion(stalls[0], RemedyKind::kNoFence);
  ASSERT_NE(fence, nullptr);
  EXPECT_EQ(fence->gain, Ns(20));
  // The input is complete from the start, so the copy started as early as possible.
  EXPECT_EQ(FindSuggestion(stalls[0], RemedyKind::kStartEarlier), nullptr);
  const Suggestion* link = FindSuggestion(stalls[0], RemedyKind::kFasterLink);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->remedy.link.bytes_per_second, 3'000'000'000);  // 30 bytes in the 10 ns of f1
}

// The host issues an op every 15 ns; the ops take 10 ns.
TEST(ExplainTest, ALateHostIsNamed) {
  const Trace trace = ChainTrace();
  RunSettings settings;
  settings.device.launch_overhead = Ns(15);
  const auto [report, stalls] =
      Explain(trace, FixedCost(), After([](PolicyContext&, const std::string&) {}), settings);
  ASSERT_EQ(stalls.size(), 6u);
  EXPECT_EQ(stalls[0].cause, StallCause::kLaunch);
  EXPECT_EQ(stalls[0].length, Ns(15));
  EXPECT_EQ(stalls[1].length, Ns(5));
  // With a faster host each op takes only its own 10 ns.
  const Suggestion* host = FindSuggestion(stalls[1], RemedyKind::kFasterHost);
  ASSERT_NE(host, nullptr);
  EXPECT_EQ(host->iteration, Ns(60));
}

TEST(ExplainTest, RemediesOfTheLongestStallsAloneAreSimulated) {
  const Trace trace = ChainTrace();
  EXPECT_FALSE(FetchOnDemand(trace, {}, 1).stalls[0].suggestions.empty());
  EXPECT_TRUE(FetchOnDemand(trace, {}, 0).stalls[0].suggestions.empty());
}

// --- Properties of every report ------------------------------------------------------------------

struct Case {
  std::string name;
  Network (*network)();
  std::string policy;
  double memory;  // a multiple of the layer bound; 0 for unlimited memory
};

class EveryReportTest : public ::testing::TestWithParam<Case> {
 protected:
  EveryReportTest()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(GetParam().network(), {4, "vdnn", true})) {
    const double bound = static_cast<double>(LayerBound(trace_, device_.alignment).count());
    const Bytes memory = GetParam().memory == 0
                             ? Bytes::Unlimited()
                             : Bytes(static_cast<int64_t>(bound * GetParam().memory));
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    report_ = testing::Simulate({Borrow(trace_), device_, Borrow(cost_), memory},
                                *registry.Make(GetParam().policy))
                  .report;
  }

  const Device device_;
  const RooflineCostModel cost_;
  const Trace trace_;
  Report report_;
};

INSTANTIATE_TEST_SUITE_P(All, EveryReportTest,
                         ::testing::Values(Case{"network_wide", testing::Chain, "network-wide", 0},
                                           Case{"liveness", testing::ForkJoin, "liveness", 0},
                                           Case{"vdnn_conv", testing::Chain, "vdnn-conv", 0},
                                           Case{"vdnn_all", testing::ForkJoin,
                                                "vdnn-all:algo=memory", 2},
                                           Case{"vdnn_dyn", testing::ForkJoin, "vdnn-dyn", 1.6}),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryReportTest, ExplainedStallsAddUpToTheMetrics) {
  ASSERT_TRUE(report_.fits());
  std::map<StallCause, Duration> by_cause;
  Duration before = Duration::Max();
  for (const StallExplanation& stall : ExplainStalls(trace_, report_)) {
    by_cause[stall.cause] += stall.length;
    EXPECT_LE(stall.length, before);
    before = stall.length;
    EXPECT_FALSE(stall.waited_for.empty());
    EXPECT_FALSE(FormatExplanation(trace_, report_, {stall}, 1).empty());
  }
  const Stalls& stalls = report_.metrics.stalls;
  EXPECT_EQ(by_cause[StallCause::kFetch], stalls.fetch);
  EXPECT_EQ(by_cause[StallCause::kFence], stalls.fence);
  EXPECT_EQ(by_cause[StallCause::kMemory], stalls.memory);
  EXPECT_EQ(by_cause[StallCause::kLaunch], stalls.launch);
  EXPECT_EQ(by_cause[StallCause::kDrain], stalls.drain);
}

// The curve's integral and maximum equal the averages and peaks of the metrics.
TEST_P(EveryReportTest, TheMemoryCurveAgreesWithTheMetrics) {
  const std::vector<MemorySample> samples = MemoryTimeline(report_);
  const Metrics& metrics = report_.metrics;
  Int128 requested = 0, allocated = 0, reserved = 0;
  Bytes peak_requested, peak_allocated, peak_reserved, pinned_peak;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Duration until = i + 1 < samples.size() ? samples[i + 1].time : metrics.iteration;
    const int64_t time = (until - samples[i].time).picoseconds();
    ASSERT_GE(time, 0);
    requested += static_cast<Int128>(samples[i].requested.count()) * time;
    allocated += static_cast<Int128>(samples[i].allocated.count()) * time;
    reserved += static_cast<Int128>(samples[i].reserved.count()) * time;
    peak_requested = std::max(peak_requested, samples[i].requested);
    peak_allocated = std::max(peak_allocated, samples[i].allocated);
    peak_reserved = std::max(peak_reserved, samples[i].reserved);
    pinned_peak = std::max(pinned_peak, samples[i].pinned());
  }
  const int64_t total = metrics.iteration.picoseconds();
  EXPECT_EQ(Bytes(static_cast<int64_t>(requested / total)), metrics.average_requested);
  EXPECT_EQ(Bytes(static_cast<int64_t>(allocated / total)), metrics.average_allocated);
  EXPECT_EQ(Bytes(static_cast<int64_t>(reserved / total)), metrics.average_reserved);
  EXPECT_EQ(peak_requested, metrics.peak_requested);
  EXPECT_EQ(peak_allocated, metrics.peak_allocated);
  EXPECT_EQ(peak_reserved, metrics.peak_reserved);
  EXPECT_EQ(pinned_peak, metrics.pinned_peak);
}

TEST_P(EveryReportTest, TheExportedTraceNamesEveryCommandOnce) {
  ChromeTraceOrigin origin;
  origin.machine = "machine";
  const std::string text = FormatChromeTrace(trace_, report_, cost_, origin);
  size_t slices = 0;
  for (size_t at = 0; (at = text.find("\"ph\": \"X\"", at)) != std::string::npos; ++at) ++slices;
  EXPECT_EQ(slices, report_.timeline.size());
  EXPECT_EQ(text, FormatChromeTrace(trace_, report_, cost_, origin));
}

TEST(CopyReasonsTest, TellsPrefetchFetchAndInputApart) {
  const Trace trace = ChainTrace();
  AfterPolicy policy([&](PolicyContext& context, const std::string& op) {
    const TensorId x = Find(trace, "x");
    if (op == "f1") context.Offload(x), context.Release(x);
    if (op == "f2") context.Prefetch(x), context.Release(x);
  });
  RunSettings settings;
  settings.options.charge_input = true;
  const Report report = RunSim(trace, FixedCost(), policy, settings).report;
  std::vector<std::string> reasons;
  const std::vector<CopyReason> all = CopyReasons(report);
  for (size_t i = 0; i < all.size(); ++i) {
    if (report.timeline[i].kind != CommandKind::kKernel) reasons.emplace_back(Name(all[i]));
  }
  EXPECT_THAT(reasons, ElementsAre("input", "prefetch", "fetch"));
}

TEST(MemoryCsvTest, HasOneLinePerChange) {
  const Trace trace = TraceBuilder()
                          .Tensor("x", TensorKind::kInput, 10)
                          .Tensor("y", TensorKind::kActivation, 20)
                          .Op("f1", Phase::kForward, {"x"}, {"y"})
                          .Build();
  AfterPolicy policy([](PolicyContext&, const std::string&) {});
  const Report report = RunSim(trace, FixedCost(), policy).report;
  EXPECT_EQ(FormatMemoryCsv(trace, report),
            "time_ms,step,op,change,tensor,change_bytes,requested_bytes,allocated_bytes,"
            "reserved_bytes,pinned_bytes\r\n"
            "0.000000000,0,f1,allocate,x,10,10,10,30,0\r\n"
            "0.000000000,0,f1,allocate,y,20,30,30,30,0\r\n"
            "0.000010000,0,f1,free,x,10,20,20,30,0\r\n"
            "0.000010000,0,f1,free,y,20,0,0,30,0\r\n");
}

}  // namespace
}  // namespace spillway::testing
