#include "sim/cost/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "experiments/evidence/roofline/errors.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "sim/cost/kernel_time.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/lookup.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

using testing::FindOp;

// A product on a sequence takes the time of its operations at the rate of its arithmetic, or the
// time of its traffic, and a constant.
TEST(RooflineTest, ProductsOnSequences) {
  const Device device = LoadDevice("h200");
  const RooflineCostModel model(device);
  const Network network = BuildNetwork("gpt(1024,1,16,5)@512", AttentionKind::kMath);
  for (const auto& [math, arithmetic] : {std::pair(Precision::kFp32, Arithmetic::kFp32),
                                         std::pair(Precision::kTf32, Arithmetic::kTf32),
                                         std::pair(Precision::kBf16, Arithmetic::kBf16)}) {
    const Trace trace = LowerNetwork(network, {8, "torch", true, std::nullopt, math});
    for (const char* name : {"h0.mlp.fc.fwd", "h0.mlp.fc.bwd", "h0.attn.scores.fwd"}) {
      const Op op = FindOp(trace, name);
      const double operations = static_cast<double>(op.flops()) /
                                (0.843 * static_cast<double>(MatrixRate(device, arithmetic)));
      const double traffic = static_cast<double>(op.traffic().count()) /
                             static_cast<double>(device.dram.bytes_per_second);
      EXPECT_NEAR(model.Kernels(op, 0, 8)[0].time.seconds(), std::max(operations, traffic) + 15e-6,
                  1e-9)
          << name;
    }
  }
  // Attention of a recorded program has the efficiency of all its other ops.
  Op attention =
      FindOp(LowerNetwork(BuildNetwork("gpt(1024,1,16,5)@512"), {8, "torch", true}), "h0.attn.fwd");
  attention.recorded.emplace();
  EXPECT_NEAR(model.Kernels(attention, 0, 8)[0].time.seconds(),
              static_cast<double>(attention.flops()) /
                      (0.75 * static_cast<double>(MatrixRate(device, Arithmetic::kFp32))) +
                  1.7e-6,
              1e-9);
}

// vDNN++'s tables need this value: "conv1_2 at N=64: 3528.56 MiB".
TEST(ConvWorkspaceTest, WinogradNonfusedIsAsInferredFromTheTables) {
  const Trace vgg = LowerNetwork(BuildNetwork("vgg16"), {64, "vdnn", true});
  const auto bytes = ConvWorkspace(FindOp(vgg, "conv1_2.fwd"), "fwd", "winograd_nonfused", 64);
  ASSERT_TRUE(bytes);
  EXPECT_NEAR(bytes->mib(), 3528.56, 0.005);
}

// u-cuDNN prints 213 MiB for conv2 of the grouped AlexNet at batch 256, and 48.9 MiB at a
// micro-batch of 32.
TEST(ConvWorkspaceTest, FftForwardIsAsPrintedByUcudnn) {
  Network net("n", {48, 27, 27});
  net.Conv("conv2", net.image(), ConvSpec::Square(128, 5, 1, 2));
  const Trace trace = LowerNetwork(net, {256, "torch", false});
  EXPECT_NEAR(ConvWorkspace(trace.ops[0], "fwd", "fft", 256)->mib(), 212.5, 0.001);
  EXPECT_NEAR(ConvWorkspace(trace.ops[0], "fwd", "fft", 32)->mib(), 48.875, 0.001);
}

// vDNN++'s tables imply 750.34 MiB for backward data of conv2 of the ungrouped AlexNet at batch
// 256.
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

// Bytes recorded with cuDNN 9.14; see traces/recorded/h200.
TEST(ConvWorkspaceTest, LaterLibrariesTransformInTwoCopies) {
  const Trace vgg = LowerNetwork(BuildNetwork("vgg16"), {64, "vdnn", true});
  const Op forward = FindOp(vgg, "conv2_1.fwd");  // 64 to 128 channels, 112 x 112
  const Op backward = FindOp(vgg, "conv2_1.bwd");
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "fft", 64), Bytes(1636073472));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "fft_tiling", 64), Bytes(142606336));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "gemm", 64), Bytes(1849688064));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "implicit_precomp_gemm", 64), Bytes(1024));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "winograd_nonfused", 64), Bytes(1388445696));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_data", "fft", 64), Bytes(2181332992));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "fft", 64), Bytes(2046820352));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "algo_1", 64), Bytes(295504));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "algo_3", 64), Bytes(0));
  const Op first = FindOp(vgg, "conv1_1.fwd");
  EXPECT_EQ(ConvWorkspace9(first, "fwd", "gemm", 64), Bytes(0));
  EXPECT_TRUE(GemmLoops(ConvShape(first)));
}

// With a 1 x 1 filter each tile is one row of 32. The layer has 192 to 16 channels of 28 x 28.
TEST(ConvWorkspaceTest, TilesOfAnOnePixelFilterAreRows) {
  Network net("n", {192, 28, 28});
  net.Conv("conv", net.image(), ConvSpec::Square(16, 1));
  const Trace trace = LowerNetwork(net, {128, "torch", false});
  EXPECT_EQ(ConvWorkspace9(trace.ops[0], "fwd", "fft_tiling", 128), Bytes(101801984));
  EXPECT_EQ(ConvWorkspace9(trace.ops[0], "fwd", "fft", 128), Bytes(240660480));
}

// Each of the two groups has its own workspace, and both together have copies of x and y. The
// network is Caffe's AlexNet.
TEST(ConvWorkspaceTest, GroupsAddUpAndCopyTheirOperands) {
  const Trace trace = LowerNetwork(BuildNetwork("alexnet-caffe"), {256, "torch", true});
  const Op forward = FindOp(trace, "conv2.fwd");  // 96 to 256 channels, 5 x 5, 27 x 27
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "fft", 1), Bytes(109019136));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "fft", 256), Bytes(834420768));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "fft_tiling", 256), Bytes(708411424));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "implicit_precomp_gemm", 1), Bytes(2048));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "implicit_precomp_gemm", 256), Bytes(262768672));
  EXPECT_EQ(ConvWorkspace9(forward, "fwd", "gemm", 256), Bytes(1791590400));
  const Op backward = FindOp(trace, "conv4.bwd");  // 384 to 384 channels, 3 x 3, 13 x 13
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_data", "algo_1", 256), Bytes(132907040));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_data", "winograd_nonfused", 1), Bytes(38928384));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_data", "winograd_nonfused", 256), Bytes(463601664));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "algo_1", 1), Bytes(2659424));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "algo_1", 256), Bytes(135561248));
  EXPECT_EQ(ConvWorkspace9(backward, "bwd_filter", "winograd_nonfused", 1), Bytes(12386304));
}

TEST(ConvWorkspaceTest, LibraryNamesBeginWithTheirMajorVersion) {
  EXPECT_EQ(LibraryMajor("cuDNN 4"), 4);
  EXPECT_EQ(LibraryMajor("cuDNN 7.0.5"), 7);
  EXPECT_EQ(LibraryMajor("cuDNN 12"), 12);
  EXPECT_EQ(LibraryMajor("cuDNN"), 0);
  EXPECT_EQ(LibraryMajor("MIOpen 3"), 0);
  EXPECT_EQ(LibraryMajor(""), 0);
}

TEST(RooflineTest, TheLargerTermDecides) {
  Device device = testing::RoundDevice();
  device.efficiency = {{"default", 1.0}, {"fwd.implicit_gemm", 0.5}};
  const RooflineCostModel cost(device);
  Network net("n", {8, 10, 10});
  LayerNode x = net.Conv("conv", net.image(), ConvSpec::Square(8, 3, 1, 1));
  net.Activation(OpType::kGelu, "gelu", net.Relu("relu", x));
  const Trace trace = LowerNetwork(net, {1, "torch", false});
  const auto conv = cost.Kernels(trace.ops[0], 0, 1);
  ASSERT_EQ(conv.size(), 1u);
  const double flops = 2.0 * 8 * 8 * 9 * 100;
  EXPECT_NEAR(conv[0].time.seconds(), flops / 0.5e9 + 3e-6, 1e-12);
  for (const Op& activation : std::span(trace.ops).subspan(1)) {
    const auto kernels = cost.Kernels(activation, 0, 1);
    EXPECT_NEAR(kernels[0].time.seconds(), std::max(800 / 1e9, 6400 / 1e12) + 3e-6, 1e-12);
  }
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

// `more` accumulates into the gradient of its input, so it also reads that gradient.
TEST(RooflineTest, SlotsOfOneSignatureTakeTheirOwnTrafficsTime) {
  const Trace trace = LowerNetwork(BuildNetwork("resnet18"), {16, "torch", true});
  const Op more = FindOp(trace, "res5_2.conv1.bwd"), less = FindOp(trace, "res5_2.conv2.bwd");
  ASSERT_EQ(more.slots[0].signature, less.slots[0].signature);
  ASSERT_GT(more.slots[0].traffic, less.slots[0].traffic);
  Device slow = LoadDevice("titan_x_maxwell");
  slow.dram.bytes_per_second /= 100;
  const RooflineCostModel first(slow), last(slow);
  const Duration time = first.Kernels(more, 0, 16)[0].time;
  EXPECT_LT(last.Kernels(less, 0, 16)[0].time, time);
  EXPECT_EQ(last.Kernels(more, 0, 16)[0].time, time);
}

// Values computed by hand for a device of 1 TFLOP/s and 1 TB/s with the time laws of later
// libraries.
TEST(RooflineTest, LaterLibrariesWasteTilesAndStartUp) {
  Device device = testing::RoundDevice();
  device.library = "cuDNN 7";
  device.flops_per_second = 1'000'000'000'000;
  device.dram = {1'000'000'000'000};
  device.efficiency = {
      {"default", 1.0}, {"fwd.implicit_gemm", 0.5}, {"fwd.winograd_nonfused", 0.5}};
  const RooflineCostModel cost(device);
  Network net("n", {64, 56, 56});
  net.Conv("conv", net.image(), ConvSpec::Square(48, 3, 1, 1));
  const Trace trace = LowerNetwork(net, {8, "torch", false});
  for (const Kernel& kernel : cost.Kernels(trace.ops[0], 0, 8)) {
    const double pixels = 8.0 * 56 * 56;
    if (kernel.algorithm == "implicit_gemm") {
      // 48 channels in tiles of 32 count as 64; a reduction of 576 costs as much as one of 640.
      EXPECT_NEAR(kernel.time.seconds(), 2 * pixels * 64 * 640 / 0.5e12 + 20e-6, 1e-9);
    } else {
      const double tiles = 8.0 * 14 * 14;  // 1568, rounded up to 1600, a multiple of 64
      const double product = 2 * 36 * 1600 * 64 * (64 + 32);
      const double operands = 4 * (pixels * (64 + 48) + 64 * 48 * 9 + 48);  // x, y, w, b
      const double bytes = operands + 2 * 4 * 36 * (tiles * (64 + 48) + 64 * 48);
      EXPECT_NEAR(kernel.time.seconds(), product / 0.5e12 + bytes / 1e12 + 30e-6, 1e-9);
    }
  }
  EXPECT_EQ(cost.Kernels(trace.ops[0], 0, 8).size(), 2u);
}

// Values computed by hand for a device of 1 TB/s. 8 x 8 x 10 x 10 floats are 25.6 kB.
TEST(RooflineTest, ResidualNetworksAreBoundByTheirPasses) {
  Device device = testing::RoundDevice();
  device.library = "cuDNN 7";
  device.flops_per_second = 1'000'000'000'000'000;
  device.dram = {1'000'000'000'000};
  device.efficiency = {{"default", 1.0}, {"fwd.implicit_gemm", 0.5}};
  const RooflineCostModel cost(device);
  Network net("n", {8, 10, 10});
  const LayerNode x = net.Conv("conv", net.image(), ConvSpec::Square(8, 3, 1, 1));
  const LayerNode norm = net.ConvNorm("other", x, ConvSpec::Square(8, 1));
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Add("add", norm, x), 10));
  const Trace trace = LowerNetwork(net, {8, "torch", true});
  const auto time = [&](const char* name) {
    return cost.Kernels(FindOp(trace, name), 0, 8)[0].time.seconds();
  };
  const double pass = 25.6e3 / 1e12, vector = 32 / 1e12, start = 1.7e-6;
  EXPECT_NEAR(time("other.bn.fwd"), 3 * pass + 4 * vector + start, 1e-12);
  EXPECT_NEAR(time("other.bn.bwd"), 5 * pass + 9 * vector + start, 1e-12);
  EXPECT_NEAR(time("add.fwd"), 3 * pass + start, 1e-12);
  // Both operands share the gradient of the sum, so nothing is launched.
  EXPECT_LE(time("add.bwd"), 1e-12);
}

// Returns the workloads recorded before the fit. The fit promises no accuracy for later recordings.
std::vector<std::string> FittedWorkloads() {
  const std::set<std::string> later{"alexnet:64",   "alexnet:512",   "googlenet:32",
                                    "googlenet:64", "googlenet:256", "vgg16:32"};
  std::vector<std::string> workloads = RecordedWorkloads("h200");
  std::erase_if(workloads, [&](const std::string& name) {
    return later.contains(name) || name.starts_with("resnet") || name.starts_with("constructed") ||
           name.starts_with("densenet") || name.starts_with("inception") ||
           name.starts_with("alexnet-plain") || name.starts_with("alexnet-227") ||
           name.starts_with("alexnet-caffe") || name.find("-d:") != std::string::npos ||
           name.find('@') != std::string::npos;
  });
  return workloads;
}

// The limits are the promise of experiments/evidence/roofline/README.md, with some room.
TEST(RooflineTest, IsCloseToTheRecordedTables) {
  const Device device = LoadDevice("h200");
  const RooflineCostModel model(device);
  const std::vector<std::string> workloads = FittedWorkloads();
  ASSERT_GE(workloads.size(), 14u);
  for (const auto& [key, errors] : SummarizeErrors(RecordedSamples(workloads, "h200"), model)) {
    if (errors.samples < 50) continue;
    EXPECT_EQ(errors.missing, 0u) << key;
    EXPECT_LE(errors.time_median, 0.25) << key;
    EXPECT_LE(errors.workspace_median, 0.01) << key;
    if (key.ends_with("fft") || key.ends_with("fft_tiling") || key.ends_with("winograd_nonfused")) {
      EXPECT_EQ(errors.exact, errors.samples) << key;
    }
  }
  for (const std::string& workload : workloads) {
    const Trace trace = LoadTrace({workload, "torch", true});
    const Duration recorded = FastestIteration(trace, *LoadCost("auto", trace, device).model);
    EXPECT_NEAR(FastestIteration(trace, model).seconds() / recorded.seconds(), 1, 0.2) << workload;
  }
}

// The workspaces are exact for grouped convolutions too, although their times were never fitted.
TEST(RooflineTest, TransformsNeedWhatWasRecorded) {
  const Device device = LoadDevice("h200");
  const auto samples = RecordedSamples({"alexnet-caffe:256", "resnet18:128"}, "h200");
  for (const auto& [key, errors] : SummarizeErrors(samples, RooflineCostModel(device))) {
    if (key.ends_with("fft") || key == "fwd.fft_tiling" || key.ends_with("winograd_nonfused")) {
      EXPECT_EQ(errors.exact, errors.samples) << key;
    }
  }
}

TEST(RooflineTest, TheFitIsTheOneInTheDeviceFile) {
  const Device device = LoadDevice("h200");
  const Device fitted = FitEfficiencies(device, RecordedSamples(FittedWorkloads(), "h200"));
  for (const auto& [key, efficiency] : fitted.efficiency) {
    // Other numbers of the file, such as the DRAM bandwidth, move the fit a little.
    EXPECT_NEAR(efficiency / device.efficiency.at(key), 1, 0.1) << key;
  }
}

TEST(RooflineTest, ADeviceWithoutAlgorithmsIsAnInputErrorEachTime) {
  const RooflineCostModel cost(testing::RoundDevice());
  const Trace trace = LowerNetwork(BuildNetwork("alexnet"), {1, "torch", false});
  EXPECT_THROW(cost.Kernels(trace.ops[0], 0, 1), InputError);
  EXPECT_THROW(cost.Kernels(trace.ops[0], 0, 1), InputError);
}

void SetAttribute(Op& op, std::string_view name, double value) {
  for (Attribute& attribute : op.attributes) {
    if (attribute.name == name) attribute.value = value;
  }
}

// Found by the fuzz target `trace`: only the attributes tell how large a convolution is.
TEST(RooflineTest, RefusesGeometriesThatOverflow) {
  const Device device = LoadDevice("h200");
  const Trace trace = LowerNetwork(BuildNetwork("vgg16"), {1, "torch", false});
  const auto error_of = [&](std::string_view attribute, double value) {
    Op op = FindOp(trace, "conv1_2.fwd");
    SetAttribute(op, attribute, value);
    return testing::InputErrorOf([&] { RooflineCostModel(device).Kernels(op, 0, 1); });
  };
  EXPECT_EQ(error_of("groups", 0),
            "op 'conv1_2.fwd' (conv2d): the attribute 'groups' is 0, expected 1 to 2147483648");
  EXPECT_EQ(error_of("in_height", -8),
            "op 'conv1_2.fwd' (conv2d): the attribute 'in_height' is -8, expected 1 to 2147483648");
  EXPECT_EQ(error_of("groups", 65), "op 'conv1_2.fwd' (conv2d) has more groups than channels: 65");
  for (const char* attribute : {"in_channels", "out_width", "kernel_h"}) {
    EXPECT_EQ(error_of(attribute, 2147483648),
              "op 'conv1_2.fwd' (conv2d): its batch and attributes make it too large");
  }
}

TEST(RooflineTest, TimesStayInRangeWhateverTheFormulasSay) {
  const Duration longest = TimeOfSeconds(std::numeric_limits<double>::infinity());
  EXPECT_GT(longest + longest, longest);
  EXPECT_EQ(TimeOfSeconds(std::numeric_limits<double>::quiet_NaN()), longest);
  EXPECT_EQ(TimeOfSeconds(1e300), longest);
  EXPECT_EQ(TimeOfSeconds(-1), Duration());
  EXPECT_EQ(TimeOfSeconds(2.5e-12), Duration::Picoseconds(3));
}

}  // namespace
}  // namespace spillway
