// Comparisons of a prediction with a measurement, on reports made by hand. No GPU is needed.

#include "experiments/tools/measure/validation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "experiments/tools/sweep/validations.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

class ValidationTest : public ::testing::Test {
 protected:
  ValidationTest()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(testing::Chain(), {3, "torch", true})) {
    PolicyRegistry registry;
    RegisterBuiltinPolicies(registry);
    validation_.predicted = testing::Simulate(SetupFor(), *registry.Make("vdnn-all"));
    validation_.measured = validation_.predicted;
    validation_.measured.execution.emplace();
    validation_.decisions_equal = validation_.placements_equal = true;
    MeasureTimes(1.0);
  }

  Draft SetupFor() const { return {Borrow(trace_), device_, Borrow(cost_), Bytes::MiB(64)}; }

  // Makes the measured iterations take about `factor` times as long as predicted. Warm-up
  // iterations and the iteration with stamps take far longer.
  void MeasureTimes(double factor) {
    const double predicted =
        static_cast<double>(validation_.predicted.report.metrics.iteration.picoseconds());
    validation_.measured.execution->iteration_times.clear();
    for (const double f : {9.0, 8.0, 7.0, factor, factor * 1.01, factor * 0.99, 6.0}) {
      validation_.measured.execution->iteration_times.push_back(
          Duration::Picoseconds(static_cast<int64_t>(predicted * f)));
    }
  }

  ValidationResult Result() {
    Case asked;
    asked.memory = "64MiB";
    asked.policy = "vdnn-all";
    const auto cost = [&] { return std::make_unique<RooflineCostModel>(device_); };
    return MakeValidationResult(asked, Inputs(asked, Borrow(trace_), cost()), validation_);
  }

  template <typename T>
  Value Find(const Columns<T>& columns, const T& item, const std::string& name) const {
    const auto column = std::find_if(columns.begin(), columns.end(),
                                     [&](const Column<T>& c) { return c.name == name; });
    return column == columns.end() ? Value(std::string("no such column")) : column->get(item);
  }

  Device device_;
  RooflineCostModel cost_;
  Trace trace_;
  Validation validation_;
};

TEST_F(ValidationTest, WarmUpAndTheStampedIterationDoNotCount) {
  MeasureTimes(1.25);
  EXPECT_NEAR(validation_.error(), -0.2, 1e-6);
  EXPECT_TRUE(Agrees(RowOf(Result()), 0.21));
  EXPECT_FALSE(Agrees(RowOf(Result()), 0.19));
  EXPECT_EQ(Find(ValidationColumns(), Result(), "timed_iterations"), Value(int64_t{3}));
}

TEST_F(ValidationTest, WhatAKernelTakesInASequenceIsWhatTheIterationLacks) {
  trace_.ops.resize(1);
  validation_.predicted.trace = Borrow(trace_);
  const auto kernels = static_cast<int64_t>(trace_.ops[0].slots.size());
  const Duration predicted = validation_.predicted.report.metrics.iteration;
  MeasureTimes(1.25);
  EXPECT_NEAR(InSequence(validation_).milliseconds(),
              std::min(0.25 * predicted.milliseconds() / static_cast<double>(kernels), 0.005),
              1e-6);
  MeasureTimes(1000);
  EXPECT_EQ(InSequence(validation_), Duration::Microseconds(5));
  MeasureTimes(0.9);
  EXPECT_EQ(InSequence(validation_), Duration());
}

TEST_F(ValidationTest, AKernelBehindOneAlikeIsInNoSequence) {
  const auto in_sequence = [&](const Trace& trace) {
    validation_.predicted.trace = Borrow(trace);
    MeasureTimes(1.001);
    return InSequence(validation_).picoseconds();
  };
  Trace some = trace_;
  const auto forward = std::ranges::find(trace_.ops, OpType::kConv2d, &Op::type);
  ASSERT_NE(forward, trace_.ops.end());
  some.ops = {*forward};
  const int64_t alone = in_sequence(some);
  ASSERT_GT(alone, 0);
  some.ops.push_back(*forward);
  EXPECT_EQ(in_sequence(some), alone);
  some.ops.push_back(*std::next(forward));
  ASSERT_EQ(std::next(forward)->slots.size(), 1);
  ASSERT_NE(std::next(forward)->type, forward->type);
  EXPECT_EQ(in_sequence(some), alone / 2);
}

TEST_F(ValidationTest, OtherDecisionsPlacementsOrOrderAreNoAgreement) {
  ASSERT_TRUE(Agrees(RowOf(Result()), 0.05));
  for (bool* flag : {&validation_.decisions_equal, &validation_.placements_equal}) {
    *flag = false;
    EXPECT_FALSE(Agrees(RowOf(Result()), 0.05));
    *flag = true;
  }
  validation_.violations = {"a copy starts before its source is written"};
  EXPECT_FALSE(Agrees(RowOf(Result()), 0.05));
}

TEST_F(ValidationTest, WhatFitsOnNeitherSideAgreesAndHasNoFigures) {
  validation_.predicted.report.out_of_memory = OutOfMemory();
  EXPECT_TRUE(Agrees(RowOf(Result()), 0));
  EXPECT_EQ(Find(ValidationColumns(), Result(), "status"), Value(std::string("oom")));
  EXPECT_EQ(Find(ValidationColumns(), Result(), "error"), Value());
  validation_.predicted.report.out_of_memory.reset();
  validation_.measured.report.out_of_memory = OutOfMemory();
  EXPECT_FALSE(Agrees(RowOf(Result()), 0.05));
}

// Returns all values of a result and its commands as text.
std::string TextOf(const ValidationResult& result) {
  const bool fits = result.fits();
  return FormatJson(ValidationColumns(), std::span(&result, 1), "") +
         (fits ? FormatCsv(CommandColumns(), CommandsOf(result.validation)) : std::string());
}

TEST_F(ValidationTest, ResultsPassToAnotherProcess) {
  validation_.violations = {"first", "second"};
  ValidationResult failed = Result();
  failed.failure = "the policy failed";
  failed.validation = {};
  for (const ValidationResult& result : {Result(), failed}) {
    const auto given = std::make_shared<const Trace>(trace_);
    for (const auto& own : {result.validation.predicted.trace, given}) {
      EXPECT_EQ(TextOf(LoadValidation(SaveValidation(result, own), given)), TextOf(result));
    }
  }
}

TEST_F(ValidationTest, CommandsStandBesideEachOther) {
  auto& entry = validation_.measured.report.timeline.front();
  entry.interval.end += Duration::Milliseconds(1);
  const auto commands = CommandsOf(validation_);
  ASSERT_EQ(commands.size(), validation_.predicted.report.timeline.size());
  const auto first = [&](const char* name) { return Find(CommandColumns(), commands[0], name); };
  EXPECT_NEAR(std::get<double>(first("measured_ms")) - std::get<double>(first("predicted_ms")), 1.0,
              1e-9);
  EXPECT_EQ(first("kind"), Value(std::string("kernel")));
}

}  // namespace
}  // namespace spillway::testing
