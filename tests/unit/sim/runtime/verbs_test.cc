// Tests of the drawings in policies/README.md, which show when the device does the work of each
// verb. An op takes 5 ns and a copy 10 ns; a column of three characters is 5 ns.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Act = std::function<void(PolicyContext& context, TensorId y1)>;

// A policy that acts after f2 and before b3.
class Scripted final : public Policy {
 public:
  Scripted(Act after_f2, Act before_b3)
      : after_f2_(std::move(after_f2)), before_b3_(std::move(before_b3)) {}

  void BeforeOp(PolicyContext& context, OpId op) override { Call(before_b3_, "b3", context, op); }
  void AfterOp(PolicyContext& context, OpId op) override { Call(after_f2_, "f2", context, op); }

 private:
  static void Call(const Act& act, std::string_view at, PolicyContext& context, OpId op) {
    if (!act || context.trace().op(op).name != at) return;
    const auto& tensors = context.trace().tensors;
    const auto y1 = std::find_if(tensors.begin(), tensors.end(),
                                 [](const Tensor& tensor) { return tensor.name == "y1"; });
    act(context, static_cast<TensorId>(y1 - tensors.begin()));
  }

  const Act after_f2_;
  const Act before_b3_;
};

std::string Timeline(Act after_f2, Act before_b3 = {}) {
  const Trace trace = testing::ChainTrace();
  Scripted policy(std::move(after_f2), std::move(before_b3));
  const auto result = testing::RunSim(trace, testing::FixedCost(Duration::Nanoseconds(5)), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  return testing::TimelineText(trace, result.report);
}

void Send(PolicyContext& context, TensorId y1) {
  EXPECT_TRUE(context.Offload(y1));
  EXPECT_TRUE(context.Release(y1));
}

//   kernels  |f1|f2|f3|b3|b2|b1|
//   to host     | y1  |
TEST(VerbsTest, OffloadRunsBesideReaders) {
  EXPECT_EQ(Timeline([](PolicyContext& context, TensorId y1) { context.Offload(y1); }),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "    5    15 d2h y1\n"
            "   10    15 compute f3\n"
            "   15    20 compute b3\n"
            "   20    25 compute b2\n"
            "   25    30 compute b1\n");
}

// A storage without which the recorded program cannot do stays where it is.
TEST(VerbsTest, AStorageThatMayNotMoveStays) {
  Trace trace = testing::ChainTrace();
  for (Tensor& tensor : trace.tensors) tensor.movable = tensor.name != "y1";
  Scripted policy(
      [&](PolicyContext& context, TensorId y1) {
        EXPECT_FALSE(context.Offload(y1));
        EXPECT_FALSE(context.Evict(y1));
        EXPECT_TRUE(context.Offload(TensorId{0}));
      },
      {});
  const auto result = testing::RunSim(trace, testing::FixedCost(Duration::Nanoseconds(5)), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_THAT(testing::TimelineText(trace, result.report),
              AllOf(HasSubstr("d2h x"), Not(HasSubstr("d2h y1"))));
}

// The peer is twice as fast as the host and has room for one tensor. The host has room for another.
//   kernels  |f1|f2|f3|b3|b2|b1|
//   to peer        |y1|
//   to host        | x   |
TEST(VerbsTest, OffloadTakesTheFastestPoolWithRoom) {
  const Trace trace = testing::ChainTrace();
  Device device = testing::DeviceWithPeer(trace.tensors[0].size);
  device.host_memory = trace.tensors[0].size;
  Scripted policy(
      [&](PolicyContext& context, TensorId y1) {
        EXPECT_FALSE(context.Offload(y1, OutsidePool(2)));  // this pool does not exist
        EXPECT_TRUE(context.Offload(y1));
        EXPECT_TRUE(context.Offload(y1));  // it is there already
        EXPECT_FALSE(context.Offload(TensorId{0}, OutsidePool(1)));
        EXPECT_TRUE(context.Offload(TensorId{0}));
        EXPECT_FALSE(context.Offload(TensorId{2}));
      },
      {});
  const auto result = testing::RunSim(trace, testing::FixedCost(Duration::Nanoseconds(5)), policy,
                                      {.device = device});
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "    5    10 out2 y1\n"
            "    0    10 d2h x\n"
            "   10    15 compute f3\n"
            "   15    20 compute b3\n"
            "   20    25 compute b2\n"
            "   25    30 compute b1\n");
  EXPECT_EQ(result.report.metrics.pools[0].offloaded, Bytes(10));
  EXPECT_EQ(result.report.metrics.pools[1].offloaded, Bytes(10));
  EXPECT_EQ(result.report.metrics.offloaded, Bytes(20));
}

//   kernels  |f1|f2|  |f3|b3|     |b2|b1|
//   to host     | y1  |
//   to device               | y1  |
TEST(VerbsTest, ReleaseMakesTheNextOwnerWait) {
  EXPECT_EQ(Timeline(Send),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "    5    15 d2h y1\n"
            "   15    20 compute f3\n"
            "   20    25 compute b3\n"
            "   25    35 h2d y1\n"
            "   35    40 compute b2\n"
            "   40    45 compute b1\n");
}

//   kernels  |f1|f2|  |f3|b3|b2|b1|
//   to host     | y1  |
//   to device         | y1  |
TEST(VerbsTest, PrefetchStartsAsSoonAsItsBytesAreThere) {
  EXPECT_EQ(Timeline(Send, [](PolicyContext& context, TensorId y1) { context.Prefetch(y1); }),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "    5    15 d2h y1\n"
            "   15    20 compute f3\n"
            "   15    25 h2d y1\n"
            "   20    25 compute b3\n"
            "   25    30 compute b2\n"
            "   30    35 compute b1\n");
}

//   kernels  |f1|f2|  |f3|b3|b2|b1|
//   to host     | y1  |
TEST(VerbsTest, FenceHoldsTheNextKernel) {
  EXPECT_EQ(Timeline([](PolicyContext& context, TensorId y1) {
              context.Offload(y1);
              context.Fence();
            }),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "    5    15 d2h y1\n"
            "   15    20 compute f3\n"
            "   20    25 compute b3\n"
            "   25    30 compute b2\n"
            "   30    35 compute b1\n");
}

//   kernels  |f1|f2|f3|b3|f1|b2|b1|
TEST(VerbsTest, EvictRunsTheProducerAgain) {
  EXPECT_EQ(Timeline([](PolicyContext& context, TensorId y1) { context.Evict(y1); }),
            "    0     5 compute f1\n"
            "    5    10 compute f2\n"
            "   10    15 compute f3\n"
            "   15    20 compute b3\n"
            "   20    25 compute again f1\n"
            "   25    30 compute b2\n"
            "   30    35 compute b1\n");
}

}  // namespace
}  // namespace spillway::testing
