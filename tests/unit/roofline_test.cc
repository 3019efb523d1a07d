#include "sim/cost/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.h"
#include "tests/testing/fixtures.h"
#include "traces/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

Op FindOp(const Trace& trace, const std::string& name) {
  return *std::find_if(trace.ops.begin(), trace.ops.end(),
                       [&](const Op& op) { return op.name == name; });
}

// "conv1_2 at N=64: 3528.56 MiB": vDNN++'s tables need this value.
TEST(ConvWorkspaceTest, WinogradNonfusedIsAsInferredFromTheTables) {
  const Trace vgg = LowerNetwork(BuildNetwork("vgg16"), {64, "vdnn", true});
  const auto bytes = ConvWorkspace(FindOp(vgg, "conv1_2.fwd"), "fwd", "winograd_nonfused", 64);
  ASSERT_TRUE(bytes);
  EXPECT_NEAR(bytes->mib(), 3528.56, 0.005);
}

// u-cuDNN: 213 MiB for conv2 of the grouped AlexNet at 256, 48.9 MiB at a micro-batch of 32.
TEST(ConvWorkspaceTest, FftForwardIsAsPrintedByUcudnn) {
  Network net("n", {48, 27, 27});
  net.Conv("conv2", net.image(), ConvSpec::Square(128, 5, 1, 2));
  const Trace trace = LowerNetwork(net, {256, "torch", false});
  EXPECT_NEAR(ConvWorkspace(trace.ops[0], "fwd", "fft", 256)->mib(), 212.5, 0.001);
  EXPECT_NEAR(ConvWorkspace(trace.ops[0], "fwd", "fft", 32)->mib(), 48.875, 0.001);
}

// vDNN++: 750.34 MiB for backward data of conv2 of the ungrouped AlexNet at 256.
TEST(ConvWorkspaceTest, FftBackwardDataIsAsInferredFromTheTables) {
  Network net("n", {96, 27, 27});
  const LayerNode conv1 = net.Conv("conv1", net.image(), ConvSpec::Square(96, 1));
  net.SoftmaxLoss("softmax", net.Conv("conv2", conv1, ConvSpec::Square(256, 5, 1, 2)));
  const Trace trace = LowerNetwork(net, {256, "vdnn", true});
  EXPECT_NEAR(ConvWorkspace(FindOp(trace, "conv2.bwd"), "bwd_data", "fft", 256)->mib(), 750.34,
              0.005);
}

TEST(ConvWorkspaceTest, AlgorithmsApplyOnlyWhereTheyCan) {
  const Trace trace = LowerNetwork(BuildNetwork("alexnet"), {16, "torch", true});
  const Op conv1 = FindOp(trace, "conv1.fwd");  // 11x11, stride 4
  for (const char* algorithm : {"fft", "fft_tiling", "winograd", "winograd_nonfused"}) {
    EXPECT_FALSE(ConvWorkspace(conv1, "fwd", algorithm, 16)) << algorithm;
  }
  EXPECT_EQ(ConvWorkspace(conv1, "fwd", "implicit_gemm", 16), Bytes(0));
  EXPECT_TRUE(ConvWorkspace(FindOp(trace, "conv3.fwd"), "fwd", "winograd_nonfused", 16));
}

TEST(RooflineTest, TheLargerTermDecides) {
  Device device = testing::RoundDevice();
  device.efficiency = {{"default", 1.0}, {"fwd.implicit_gemm", 0.5}};
  const RooflineCostModel cost(device);
  Network net("n", {8, 10, 10});
  LayerNode x = net.Conv("conv", net.image(), ConvSpec::Square(8, 3, 1, 1));
  net.Relu("relu", x);
  const Trace trace = LowerNetwork(net, {1, "torch", false});
  const auto conv = cost.Kernels(trace.ops[0], 0, 1);
  ASSERT_EQ(conv.size(), 1u);
  const double flops = 2.0 * 8 * 8 * 9 * 100;
  EXPECT_NEAR(conv[0].time.seconds(), flops / 0.5e9 + 3e-6, 1e-12);
  const auto relu = cost.Kernels(trace.ops[1], 0, 1);
  EXPECT_NEAR(relu[0].time.seconds(), std::max(800 / 1e9, 6400 / 1e12) + 3e-6, 1e-12);
}

TEST(RooflineTest, CandidatesAreSortedAndMicroBatchesCheaper) {
  Device device = testing::RoundDevice();
  device.efficiency = {
      {"default", 1.0}, {"fwd.implicit_gemm", 0.5}, {"fwd.winograd_nonfused", 1.5}};
  const RooflineCostModel cost(device);
  const Trace trace = LowerNetwork(BuildNetwork("vgg16"), {8, "torch", false});
  const Op conv = FindOp(trace, "conv2_1.fwd");
  const auto kernels = cost.Kernels(conv, 0, 8);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].algorithm, "winograd_nonfused");
  EXPECT_LT(kernels[0].time, kernels[1].time);
  EXPECT_EQ(LeastWorkspace(kernels), 1u);
  EXPECT_EQ(FastestWithin(kernels, kernels[0].workspace), 0u);
  EXPECT_EQ(FastestWithin(kernels, kernels[0].workspace - Bytes(1)), 1u);
  const auto half = cost.Kernels(conv, 0, 4);
  EXPECT_LT(half[0].time, kernels[0].time);
  EXPECT_LT(half[0].workspace, kernels[0].workspace);
}

TEST(RooflineTest, ADeviceWithoutAlgorithmsIsAnInputError) {
  const RooflineCostModel cost(testing::RoundDevice());
  const Trace trace = LowerNetwork(BuildNetwork("alexnet"), {1, "torch", false});
  EXPECT_THROW(cost.Kernels(trace.ops[0], 0, 1), InputError);
}

}  // namespace
}  // namespace spillway
