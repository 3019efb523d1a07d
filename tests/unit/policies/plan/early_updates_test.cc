#include "policies/plan/early_updates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/networks.h"
#include "traces/liveness.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

std::vector<std::string> NamesOf(const Trace& trace) {
  std::vector<std::string> names;
  for (const Op& op : trace.ops) names.push_back(op.name);
  return names;
}

TEST(EarlyUpdates, EachComesBehindTheLastOpThatReadsItsParameter) {
  Network net("two", {4, 8, 8});
  net.SoftmaxLoss("loss",
                  net.Linear("fc", net.Conv("conv", net.image(), ConvSpec::Square(4, 3)), 5));
  const Trace trace = LowerNetwork(net, {2, "torch", true});
  EXPECT_EQ(NamesOf(trace),
            (std::vector<std::string>{"conv.fwd", "fc.fwd", "loss.fwd", "loss.bwd", "fc.bwd",
                                      "conv.bwd", "conv.update", "fc.update"}));
  const Trace early = WithEarlyUpdates(trace);
  early.Validate();
  EXPECT_EQ(NamesOf(early),
            (std::vector<std::string>{"conv.fwd", "fc.fwd", "loss.fwd", "loss.bwd", "fc.bwd",
                                      "fc.update", "conv.bwd", "conv.update"}));
}

// Only updates move, and each op reads the same version of each storage in both traces.
TEST(EarlyUpdates, KeepTheOrderOfUsesOfEveryStorage) {
  for (const auto network : {testing::Chain, testing::ForkJoin, testing::Residual,
                             testing::Normalized, testing::Dense, testing::Gpt}) {
    const Trace trace = LowerNetwork(network(), {2, "torch", true});
    const Trace early = WithEarlyUpdates(trace);
    EXPECT_NE(NamesOf(early), NamesOf(trace)) << trace.name;
    const Liveness before(trace), after(early);
    const auto uses_of = [](const Trace& t, const Liveness& liveness, TensorId id) {
      std::vector<std::string> names;
      for (const OpId use : liveness.Uses(id)) names.push_back(t.op(use).name);
      return names;
    };
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (before.Root(id) != id) continue;
      EXPECT_EQ(uses_of(early, after, id), uses_of(trace, before, id)) << trace.tensor(id).name;
    }
  }
}

// The end of a hold moves with its op, but not before an op that uses the tensor.
TEST(EarlyUpdates, KeepHoldsBehindTheirUses) {
  Trace trace = LowerNetwork(testing::Chain(), {2, "torch", true});
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness.Root(id) != id || liveness.Uses(id).empty()) continue;
    trace.tensors[i].held_until = *liveness.LastUse(id);
  }
  trace.Validate();
  const Trace early = WithEarlyUpdates(trace);
  early.Validate();
  const Liveness after(early);
  for (size_t i = 0; i < early.tensors.size(); ++i) {
    const auto& held = early.tensors[i].held_until;
    if (held) {
      EXPECT_EQ(*held, *after.LastUse(static_cast<TensorId>(i))) << early.tensors[i].name;
    }
  }
}

TEST(EarlyUpdates, StatesLeaveAtEqualDistances) {
  EXPECT_EQ(LeavingOrder(0), std::vector<size_t>());
  EXPECT_EQ(LeavingOrder(5), (std::vector<size_t>{0, 4, 2, 1, 3}));
  for (const size_t count : {1u, 8u, 31u, 64u, 100u}) {
    std::vector<size_t> order = LeavingOrder(count);
    ASSERT_EQ(order.size(), count);
    // The distance to the next one is at most twice that of equal distances.
    for (size_t left = 1; left < count; ++left) {
      std::vector<size_t> outside(order.begin(), order.begin() + left);
      std::ranges::sort(outside);
      outside.push_back(count);
      for (size_t i = 0; i < left; ++i) {
        EXPECT_LE((outside[i + 1] - outside[i]) * left, 2 * count) << left << " of " << count;
      }
    }
    std::ranges::sort(order);
    EXPECT_EQ(std::ranges::unique(order).begin(), order.end());
  }
}

TEST(EarlyUpdates, LeaveATraceWithoutUpdatesAlone) {
  for (const char* preset : {"vdnn", "vdnnpp"}) {
    const Trace trace = LowerNetwork(testing::Chain(), {2, preset, true});
    EXPECT_EQ(WithEarlyUpdates(trace), trace) << preset;
  }
  const Trace inference = LowerNetwork(testing::Chain(), {2, "torch", false});
  EXPECT_EQ(WithEarlyUpdates(inference), inference);
}

}  // namespace
}  // namespace spillway::testing
