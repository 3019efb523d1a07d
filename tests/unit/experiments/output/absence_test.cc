// Tests of storages that leave the device, in iterations small enough to draw.

#include "experiments/output/absence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "experiments/run/remedy.h"
#include "experiments/run/run.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/runs.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TensorId kX{0}, kY1{1};

Duration Ns(int64_t n) { return Duration::Nanoseconds(n); }

// A policy that offloads x after f1 without a prefetch, and evicts y1 after f2 if `drops`.
class LeavingPolicy final : public Policy {
 public:
  explicit LeavingPolicy(bool drops) : drops_(drops) {}

  void AfterOp(PolicyContext& context, OpId op) override {
    if (context.recomputing()) return;
    if (op == OpId{0} && context.Offload(kX)) context.Release(kX);
    if (op == OpId{1} && drops_) context.Evict(kY1);
  }

 private:
  const bool drops_;
};

struct Explained {
  Report report;
  std::vector<Absence> absences;
};

Explained Explain(const Trace& trace, bool drops, Bytes memory, size_t limit = 10) {
  const FixedCost cost;
  const testing::RunSettings settings;
  const PolicyChoice policy("leaving", [=] { return std::make_unique<LeavingPolicy>(drops); });
  const Draft run{Borrow(trace), settings.device, Borrow(cost), memory, "best-fit", policy};
  Explained explained{Predict(run).report, {}};
  explained.absences = ExplainAbsences(
      trace, explained.report,
      [&](const StallRemedy& remedy) { return SimulateRemedy({}, run, remedy); }, limit);
  return explained;
}

//   d2h      |x |
//   compute  |f1|f2|f3|b3|  |f1|b2|b1|    f1 runs again for b2, and reads x
//   h2d                  |x |
TEST(AbsenceTest, SaysWhenAStorageWasGoneAndWhatKeepingItWouldCost) {
  const Trace trace = ChainTrace();
  const auto [report, absences] = Explain(trace, true, Bytes::Unlimited());
  ASSERT_EQ(report.metrics.iteration, Ns(80));
  ASSERT_EQ(absences.size(), 2u);
  const auto name = [&](OpId op) { return trace.op(op).name; };

  const Absence& x = absences[0];
  EXPECT_EQ(x.storage, kX);
  EXPECT_EQ(x.size, Bytes(10));
  EXPECT_EQ(x.times, 1);
  EXPECT_EQ(name(*x.copied), "f1");
  EXPECT_EQ(name(x.left), "f1");
  EXPECT_EQ(name(x.returned), "b2");
  EXPECT_EQ(x.way, WayBack::kFetch);
  EXPECT_EQ(name(x.needed), "b1");
  EXPECT_EQ(x.copy_time, Ns(20));
  EXPECT_EQ(x.recompute_time, Duration());
  EXPECT_EQ(x.if_kept, Ns(70));

  const Absence& y1 = absences[1];
  EXPECT_EQ(y1.storage, kY1);
  EXPECT_EQ(y1.copied, std::nullopt);
  EXPECT_EQ(name(y1.left), "f2");
  EXPECT_EQ(name(y1.returned), "b2");
  EXPECT_EQ(y1.way, WayBack::kRecompute);
  EXPECT_EQ(name(y1.needed), "b2");
  EXPECT_EQ(y1.copy_time, Duration());
  EXPECT_EQ(y1.recompute_time, Ns(10));
  EXPECT_EQ(y1.if_kept, Ns(70));  // x is fetched for b1 instead
  EXPECT_THAT(FormatAbsences(trace, report, absences, 1),
              AllOf(HasSubstr("2 storages leave"), HasSubstr("70 ns (-10 ns)"),
                    HasSubstr("1 smaller ones")));
}

// The five storages live at b3 take 50 bytes.
TEST(AbsenceTest, WhatWouldNotFitIsNotGivenATime) {
  const Trace trace = ChainTrace();
  const auto [report, absences] = Explain(trace, false, Bytes(40));
  ASSERT_EQ(absences.size(), 1u);
  EXPECT_TRUE(absences[0].simulated);
  EXPECT_EQ(absences[0].if_kept, std::nullopt);
  EXPECT_THAT(FormatAbsences(trace, report, absences, 1), HasSubstr("does not fit"));
}

TEST(AbsenceTest, SimulatesNoMoreThanItMay) {
  const Trace trace = ChainTrace();
  const auto [report, absences] = Explain(trace, true, Bytes::Unlimited(), 1);
  ASSERT_EQ(absences.size(), 2u);
  EXPECT_TRUE(absences[0].simulated);
  EXPECT_FALSE(absences[1].simulated);
  EXPECT_THAT(FormatAbsences(trace, report, {}, 1), IsEmpty());
}

}  // namespace
}  // namespace spillway::testing
