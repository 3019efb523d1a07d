// Tests of the memory rules of the frameworks that SuperNeurons compares with. The expected values
// are sums over the trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/files.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/liveness.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FrameworksTest : public ::testing::Test {
 protected:
  FrameworksTest() : device_(Exact()), cost_(device_) { RegisterBuiltinPolicies(registry_); }

  // Returns a device with blocks of 1 byte, on which the fastest algorithms need workspace.
  static Device Exact() {
    Device device = testing::NarrowDevice();
    device.alignment = Bytes(1);
    device.dram = {1'000'000'000'000};
    return device;
  }

  Report Run(const Trace& trace, const std::string& policy, Bytes memory = Bytes::Unlimited()) {
    const Draft setup{Borrow(trace), device_, Borrow(cost_), memory};
    Report report = testing::Simulate(setup, *registry_.Make(policy)).report;
    EXPECT_THAT(Check(trace, report), IsEmpty()) << policy;
    return report;
  }

  // Returns the total size of the storages that satisfy `counted`.
  static Bytes Sum(const Trace& trace, const std::function<bool(const Tensor&)>& counted) {
    const Liveness liveness(trace);
    Bytes sum;
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness.Root(id) == id && counted(trace.tensor(id))) sum += trace.tensor(id).size;
    }
    return sum;
  }
  static Bytes SizeOf(const Trace& trace, const std::string& name) {
    return std::find_if(trace.tensors.begin(), trace.tensors.end(),
                        [&](const Tensor& tensor) { return tensor.name == name; })
        ->size;
  }
  static bool Any(const Tensor&) { return true; }

  Device device_;
  RooflineCostModel cost_;
  PolicyRegistry registry_;
};

// Returns a network of convolutions with equal outputs, one kernel each and no ReLU.
Network UniformChain(int length) {
  Network net("uniform", {4, 8, 8});
  LayerNode x = net.image();
  for (int i = 1; i <= length; ++i) {
    x = net.Conv("conv" + std::to_string(i), x, ConvSpec::Square(4, 3, 1, 1));
  }
  net.SoftmaxLoss("softmax", net.Linear("fc", x, 2));
  return net;
}

TEST_F(FrameworksTest, CaffeHoldsDataAndDiffOfEveryBlob) {
  const Trace trace = LowerNetwork(testing::Chain(), {4, "torch", true});
  EXPECT_EQ(Run(trace, "caffe:workspace=0B").metrics.peak_requested, Sum(trace, Any));
}

// Each convolution has three workspaces, one per stream. Each is as large as the neediest call of
// the convolution asks.
TEST_F(FrameworksTest, CaffeHasAWorkspaceForEachConvolution) {
  const Trace trace = LowerNetwork(testing::Chain(), {64, "torch", true});
  Bytes expected;
  for (const Layer& layer : trace.layers) {
    Bytes neediest;
    for (const Op& op : trace.ops) {
      if (trace.layer(op.layer).name != layer.name) continue;
      for (size_t slot = 0; slot < op.slots.size(); ++slot) {
        neediest = std::max(neediest, cost_.Kernels(op, slot, op.batch).front().workspace);
      }
    }
    expected += 3 * neediest;
  }
  EXPECT_GT(expected, Bytes(0));
  EXPECT_EQ(Run(trace, "caffe:workspace=1GiB").metrics.peak_requested, Sum(trace, Any) + expected);
}

// The stem and module a have three readers each, so each has three additional diffs.
TEST_F(FrameworksTest, CaffeSplitsWhatHasSeveralReaders) {
  const Trace trace = LowerNetwork(testing::ForkJoin(), {4, "torch", true});
  EXPECT_EQ(Run(trace, "caffe:workspace=0B").metrics.peak_requested,
            Sum(trace, Any) + 3 * SizeOf(trace, "stem.y") + 3 * SizeOf(trace, "a.concat.y"));
}

TEST_F(FrameworksTest, CaffeKeepsTwoMoreCopiesForABatchNormalisation) {
  Network net("norm", {3, 8, 8});
  net.SoftmaxLoss("softmax", net.Linear("fc", net.ConvNormRelu("conv", 0, {4, 3, 3}), 2));
  const Trace trace = LowerNetwork(net, {4, "torch", true});
  EXPECT_EQ(Run(trace, "caffe:workspace=0B").metrics.peak_requested,
            Sum(trace, Any) + 2 * SizeOf(trace, "conv.bn.y"));
  const Trace inference = LowerNetwork(net, {4, "torch", false});
  EXPECT_EQ(Run(inference, "caffe:workspace=0B").metrics.peak_requested, Sum(inference, Any));
}

// Gradients of activations share memory: in a chain they alternate between two buffers. Every other
// storage has memory for itself.
TEST_F(FrameworksTest, TorchSharesGradientsAlone) {
  const Trace trace = LowerNetwork(testing::Chain(), {4, "torch", true});
  const Liveness liveness(trace);
  std::vector<Bytes> gradients;  // in the order in which backward writes them
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (trace.tensor(id).kind == TensorKind::kGradient && liveness.Root(id) == id) {
      gradients.push_back(trace.tensor(id).size);
    }
  }
  Bytes even, odd;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Bytes& buffer = i % 2 == 0 ? even : odd;
    buffer = std::max(buffer, gradients[i]);
  }
  const Bytes rest = Sum(trace, [](const Tensor& t) { return t.kind != TensorKind::kGradient; });
  EXPECT_EQ(Run(trace, "torch").metrics.peak_requested, rest + even + odd);
}

TEST_F(FrameworksTest, MxnetRecomputesInEachMicroBatch) {
  const auto recomputed = [&](int64_t micro_batches) {
    const Report report =
        Run(LowerNetwork(UniformChain(64), {.batch = 4, .accumulate = micro_batches}), "mxnet");
    return std::ranges::count(report.decisions, Verb::kRecompute, &Decision::verb);
  };
  EXPECT_GT(recomputed(1), 40);
  EXPECT_EQ(recomputed(3), 3 * recomputed(1));
}

// For 64 equal layers, segments of 8 are best, one more than the budget of 7. The activations of
// the last segment and the activations at the 8 cuts stay. All others are recomputed once.
TEST_F(FrameworksTest, MxnetCutsAChainIntoSquareRootSegments) {
  const Trace trace = LowerNetwork(UniformChain(64), {4, "torch", true});
  const Report report = Run(trace, "mxnet:workspace=0B");
  std::set<OpId> again;
  for (const Decision& decision : report.decisions) {
    if (decision.verb != Verb::kRecompute) continue;
    EXPECT_TRUE(again.insert(decision.op).second);
  }
  EXPECT_GE(report.metrics.recomputed_ops, 64 - 16 - 2);
  EXPECT_LE(report.metrics.recomputed_ops, 64 - 8);
  // 16 activations live instead of 64, together with the two current gradients.
  const Bytes layer = SizeOf(trace, "conv1.y");
  const Bytes all = Run(trace, "mxnet:recompute=false,workspace=0B").metrics.peak_requested;
  EXPECT_NEAR((all - report.metrics.peak_requested).mib() / layer.mib(), 64 - 16, 3);
  EXPECT_EQ(Run(trace, "liveness:algo=memory").metrics.peak_requested, all);
}

// If the stem's output skips all modules, the network cannot be cut.
TEST_F(FrameworksTest, MxnetCutsOnlyWhereOneActivationIsHandedOn) {
  Network net("skip", {4, 8, 8});
  const LayerNode stem = net.Conv("stem", net.image(), ConvSpec::Square(4, 3, 1, 1));
  LayerNode x = stem;
  for (int i = 1; i <= 8; ++i) {
    x = net.Conv("conv" + std::to_string(i), x, ConvSpec::Square(4, 3, 1, 1));
  }
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("add", x, stem), 2));
  const Trace trace = LowerNetwork(net, {4, "torch", true});
  EXPECT_LE(Run(trace, "mxnet").metrics.recomputed_ops, 9);
  for (const Decision& decision : Run(trace, "mxnet").decisions) {
    EXPECT_TRUE(decision.verb != Verb::kEvict || decision.tensor != TensorId{2});
  }
}

TEST_F(FrameworksTest, MxnetRespectsTheLimitOfAWorkspace) {
  const Trace trace = LowerNetwork(testing::Chain(), {64, "torch", true});
  const Bytes none = Run(trace, "mxnet:recompute=false,workspace=0B").metrics.peak_requested;
  EXPECT_GT(Run(trace, "mxnet:recompute=false").metrics.peak_requested, none);
}

// With enough memory nothing moves. With less, the outputs of the first layers, which live longest,
// are offloaded, and the run fits where `liveness` does not.
TEST_F(FrameworksTest, TensorFlowSwapsWhatLivesLongest) {
  const Trace trace = LowerNetwork(UniformChain(64), {256, "torch", true});
  const Bytes all = Run(trace, "liveness:algo=memory").metrics.peak_requested;
  EXPECT_EQ(Run(trace, "tensorflow", 2 * all).metrics.offloaded, Bytes(0));
  const Bytes memory(all.count() * 6 / 10);
  EXPECT_FALSE(Run(trace, "liveness:algo=memory", memory).fits());
  const Report report = Run(trace, "tensorflow:life=0", memory);
  ASSERT_TRUE(report.fits());
  std::vector<std::string> moved;
  for (const Decision& decision : report.decisions) {
    if (decision.verb == Verb::kOffload) moved.push_back(trace.tensor(decision.tensor).name);
  }
  ASSERT_GE(moved.size(), 20u);
  moved.resize(3);
  EXPECT_THAT(moved, ElementsAre("conv1.y", "conv2.y", "conv3.y"));
  // No more is offloaded than the estimate asks for: 15 per cent of the memory stay free for other
  // uses.
  EXPECT_LT(report.metrics.offloaded, all - memory + Bytes(memory.count() / 5));
  EXPECT_EQ(report.metrics.prefetched, report.metrics.offloaded);
}

// DTR, section 4: nothing is evicted while memory suffices. Heuristics that consider the cost spend
// less time on recomputation than one that ignores it.
TEST_F(FrameworksTest, DtrDropsWhatIsCheapToRecompute) {
  const Trace trace = LowerNetwork(BuildNetwork("resnet50"), {16, "torch", true});
  const Device device = ReadDevice(testing::InSource("sim/devices/a100.toml"));
  const RooflineCostModel cost(device);
  const auto recomputed = [&](const std::string& policy, Bytes memory) {
    const Report report =
        testing::Simulate({Borrow(trace), device, Borrow<CostModel>(cost), memory},
                          *registry_.Make(policy))
            .report;
    EXPECT_TRUE(report.fits()) << policy;
    EXPECT_THAT(Check(trace, report), IsEmpty()) << policy;
    return report.metrics.recompute;
  };
  const Bytes half = Bytes::MiB(925);  // halfway from the largest layer to the in-core peak
  EXPECT_EQ(recomputed("dtr", Bytes::Unlimited()), Duration());
  const Duration lru = recomputed("dtr:heuristic=lru", half);
  EXPECT_GT(lru, Duration());
  EXPECT_LT(recomputed("dtr", half), lru);
  EXPECT_LT(recomputed("dtr:heuristic=msps", half), lru);
  // Only `dtr-eq` counts storages that are connected to a storage indirectly, through others.
  const Bytes third = Bytes::MiB(700);
  EXPECT_NE(recomputed("dtr", third), recomputed("dtr:heuristic=dtr-eq", third));
}

// Capuchin, section 4: nothing moves while memory suffices. Copies that can be hidden are chosen
// first, and recomputation only after them. A prefetch that came too late is issued earlier next
// time.
TEST_F(FrameworksTest, CapuchinSwapsWhatHidesAndRecomputesTheRest) {
  const Trace trace = LowerNetwork(BuildNetwork("resnet50"), {16, "torch", true});
  const auto run = [&](const std::string& policy, Bytes memory, int64_t link) {
    Device device = ReadDevice(testing::InSource("sim/devices/a100.toml"));
    device.h2d.bandwidth = device.d2h.bandwidth = {link * 1'000'000'000};
    const RooflineCostModel cost(device);
    const Report report =
        testing::Simulate({Borrow(trace), device, Borrow<CostModel>(cost), memory},
                          *registry_.Make(policy))
            .report;
    EXPECT_TRUE(report.fits()) << policy;
    EXPECT_THAT(Check(trace, report), IsEmpty()) << policy;
    return report.metrics;
  };
  const Bytes half = Bytes::MiB(925);  // halfway from the largest layer to the in-core peak
  const Metrics in_core = run("capuchin", Bytes::Unlimited(), 25);
  EXPECT_EQ(in_core.offloaded + Bytes(in_core.recomputed_ops), Bytes(0));
  const Metrics fast = run("capuchin", half, 500);
  EXPECT_EQ(fast.recompute, Duration());
  EXPECT_GT(fast.offloaded, Bytes::MiB(400));
  const Metrics slow = run("capuchin", half, 5);
  EXPECT_GT(slow.recompute, Duration());
  EXPECT_LT(slow.offloaded * 2, fast.offloaded);
  const Metrics without = run("capuchin:feedback=0", Bytes::MiB(700), 25);
  const Metrics with = run("capuchin", Bytes::MiB(700), 25);
  EXPECT_LT(with.iteration, without.iteration);
  EXPECT_LT(with.stalls.fetch, without.stalls.fetch);
}

}  // namespace
}  // namespace spillway::testing
