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
#include "sim/cost/sequence_time.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/lookup.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

Trace LowerGpt(const std::string& network, Precision precision) {
  return LowerNetwork(BuildNetwork(network, AttentionKind::kMath),
                      {8, "torch", true, std::nullopt, precision});
}

double SecondsOf(const Device& device, const Op& op) {
  return RooflineCostModel(device).Kernels(op, 0, op.batch)[0].time.seconds();
}

// A product on a sequence wastes a part of its tiles. Backward of a linear layer has two products.
// In bfloat16 it first converts an input of float32, and it adds up the bias in a pass.
TEST(RooflineTest, ProductsOnSequences) {
  Device device = LoadDevice("h200");
  const auto rate = [&](const char* key, Arithmetic arithmetic) {
    return device.efficiency.at(key) * static_cast<double>(MatrixRate(device, arithmetic));
  };
  const double dram = static_cast<double>(device.dram.bytes_per_second);
  const auto product = [](double m, double n, double d) { return 2 * m * n * d; };
  const Trace fp32 = LowerGpt("gpt(1024,1,16,5)@512", Precision::kFp32);
  const double slow = rate("product.fp32", Arithmetic::kFp32);
  EXPECT_NEAR(SecondsOf(device, FindOp(fp32, "h0.mlp.fc.fwd")),
              product(4096 + 32, 4096 + 32, 1024 + 32) / slow + 4e-6, 1e-9);
  EXPECT_NEAR(SecondsOf(device, FindOp(fp32, "h0.attn.scores.fwd")),
              8 * 16 * product(512 + 32, 512 + 32, 64 + 32) / slow + 4e-6, 1e-9);
  EXPECT_NEAR(SecondsOf(device, FindOp(fp32, "h0.attn.values.bwd")),
              2 * (8 * 16 * product(512 + 32, 512 + 32, 64 + 32) / slow + 4e-6), 1e-9);
  const Trace bf16 = LowerGpt("gpt(1024,1,16,5)@512", Precision::kBf16);
  const double fast = rate("product.short", Arithmetic::kBf16);
  const double convert = 6 * 4096.0 * 1024 / (0.75 * dram);
  EXPECT_NEAR(SecondsOf(device, FindOp(bf16, "h0.mlp.fc.fwd")),
              product(4096 + 64, 4096 + 64, 1024 + 128) / fast + 4e-6 + convert, 1e-9);
  EXPECT_NEAR(SecondsOf(device, FindOp(bf16, "h0.mlp.fc.bwd")),
              product(4096 + 64, 1024 + 64, 4096 + 128) / fast +
                  product(4096 + 64, 1024 + 64, 4096 + 128) / fast + 8e-6 + convert + 7e-6 +
                  2 * 4096.0 * 4096 / (0.3 * dram),
              1e-9);
  // A device without these efficiencies has the one of linear layers.
  std::erase_if(device.efficiency, [](const auto& e) { return e.first.starts_with("product"); });
  EXPECT_NEAR(SecondsOf(device, FindOp(fp32, "h0.mlp.fc.fwd")),
              product(4096 + 32, 4096 + 32, 1024 + 32) /
                      (0.843 * static_cast<double>(device.flops_per_second)) +
                  4e-6,
              1e-9);
}

// cuBLASLt reads 16 bytes at once. The width of the vocabulary aligns the rows of the last layer.
TEST(RooflineTest, TheAlignmentOfRowsChoosesTheEfficiency) {
  const Device device = LoadDevice("h200");
  const auto key = [&](int vocabulary, Precision precision, const char* op = "lm_head.fwd") {
    const Trace trace =
        LowerGpt("gpt(1024,1,16," + std::to_string(vocabulary) + ")@512", precision);
    const Op found = FindOp(trace, op);
    return SequenceKey(device, found, found.slots[0]);
  };
  EXPECT_EQ(key(50257, Precision::kBf16), "product.short_2_bytes");
  EXPECT_EQ(key(30522, Precision::kBf16), "product.short_4_bytes");
  EXPECT_EQ(key(30524, Precision::kBf16), "product.short_4_bytes");
  EXPECT_EQ(key(50264, Precision::kBf16), "product.short");
  EXPECT_EQ(key(50257, Precision::kBf16, "h0.mlp.fc.fwd"), "product.short");
  EXPECT_EQ(key(50257, Precision::kTf32), "product.tf32_unaligned");
  EXPECT_EQ(key(30524, Precision::kTf32), "product.tf32");
  EXPECT_EQ(key(50257, Precision::kFp32), "product.fp32");
  EXPECT_EQ(key(50257, Precision::kBf16, "h0.mlp.gelu.fwd"), "");
  // Scores of 197 x 197 begin at odd elements.
  const Trace odd = LowerGpt("gpt(1024,1,16,8)@197", Precision::kBf16);
  const Op scores = FindOp(odd, "h0.attn.scores.fwd");
  EXPECT_EQ(SequenceKey(device, scores, scores.slots[0]), "product.short_2_bytes");
  // A GPU without units for bfloat16 computes in float32.
  const Op bf16 = FindOp(odd, "h0.mlp.fc.fwd");
  EXPECT_EQ(SequenceKey(LoadDevice("v100"), bf16, bf16.slots[0]), "product.fp32");
}

// 197 positions take two tiles of 128, and a causal mask saves whole tiles alone.
TEST(RooflineTest, AttentionHasTiles) {
  const Device device = LoadDevice("h200");
  const double rate = device.efficiency.at("attention.fwd") *
                      static_cast<double>(MatrixRate(device, Arithmetic::kBf16));
  const double dram = static_cast<double>(device.dram.bytes_per_second);
  const auto time = [&](const char* network, const char* op) {
    return SecondsOf(device,
                     FindOp(LowerNetwork(BuildNetwork(network),
                                         {8, "torch", true, std::nullopt, Precision::kBf16}),
                            op));
  };
  const double products = 4 * 8 * 16;  // two products of each head of a sample
  EXPECT_NEAR(time("gpt(1024,1,16,8)@1024", "h0.attn.fwd"),
              products * (1024.0 * 1024 + 2 * 128 * 1024) / 2 * (64 + 32) / rate + 8e-6, 1e-9);
  EXPECT_NEAR(time("gpt(1024,1,16,8)@1024", "h0.attn.bwd"),
              2.5 * products * (1024.0 * 1024 + 2 * 128 * 1024) / 2 * (64 + 64) / rate + 20e-6,
              1e-9);
  EXPECT_NEAR(time("gpt(1024,1,16,8)@197", "h0.attn.fwd"),
              products * 256 * 256 * (64 + 32) / rate + 8e-6, 1e-9);
  // The gradients of keys that four heads share are added up.
  const Op shared = FindOp(LowerNetwork(BuildNetwork("llama(1024,1,16,4,2048,8)@1024"),
                                        {8, "torch", true, std::nullopt, Precision::kBf16}),
                           "h0.attn.bwd");
  EXPECT_NEAR(SecondsOf(device, shared) - time("gpt(1024,1,16,8)@1024", "h0.attn.bwd"),
              2 * static_cast<double>(shared.traffic().count()) / dram, 1e-9);
}

// Kernels that pass over bfloat16 reach a smaller share of the bandwidth. Ops of float32 that
// networks of images have, too, keep their times.
TEST(RooflineTest, PassesOfTransformers) {
  const Device device = LoadDevice("h200");
  const double dram = static_cast<double>(device.dram.bytes_per_second);
  const auto share = [&](const char* op, Precision precision, double start) {
    const Op found = FindOp(LowerGpt("gpt(1024,1,16,8)@1024", precision), op);
    return static_cast<double>(found.traffic().count()) / (SecondsOf(device, found) - start) / dram;
  };
  EXPECT_NEAR(share("h0.mlp.gelu.fwd", Precision::kFp32, 3e-6), 0.95, 1e-3);
  EXPECT_NEAR(share("h0.mlp.gelu.fwd", Precision::kBf16, 3e-6), 0.65, 1e-3);
  EXPECT_NEAR(share("ln_f.bwd", Precision::kBf16, 6e-6), 0.28, 1e-3);
  EXPECT_NEAR(share("loss.fwd", Precision::kFp32, 10e-6), 0.55, 1e-3);
  EXPECT_NEAR(share("h0.attn.add.fwd", Precision::kFp32, 1.7e-6), 1, 1e-3);
  // Backward of an embedding that is also the last layer's weight touches its own rows alone.
  const Op tied = FindOp(LowerGpt("gpt(1024,1,16,50264)@64", Precision::kBf16), "wte.bwd");
  EXPECT_NEAR(SecondsOf(device, tied), 6e-6 + 3 * 2 * 8 * 64 * 1024.0 / (0.9 * dram), 1e-9);
}

TEST(RooflineTest, RecordedProgramsHaveTheDefaultEfficiency) {
  const Device device = LoadDevice("h200");
  const RooflineCostModel model(device);
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

// The efficiencies of transformers were fitted to operators of PyTorch, so that a fit to the
// tables of the zoo confirms them. The limits are the promise of the page, with some room.
TEST(RooflineTest, TransformersAreCloseToTheRecordedTables) {
  const Device device = LoadDevice("h200");
  const RooflineCostModel model(device);
  const std::vector<std::string> workloads = RecordedWorkloads("h200", RecordedKind::kTransformers);
  ASSERT_GE(workloads.size(), 15u);
  const std::vector<Sample> samples =
      RecordedSamples(workloads, "h200", RecordedKind::kTransformers);
  for (const auto& [key, errors] : SummarizeErrors(samples, model)) {
    if (key.starts_with("product") || key.starts_with("attention")) {
      EXPECT_LE(errors.time_median, 0.12) << key;
      EXPECT_EQ(errors.missing, 0u) << key;
    }
  }
  for (const std::string& workload : workloads) {
    const Trace trace = LoadRecorded(workload);
    const Duration recorded = FastestIteration(trace, *LoadCost("auto", trace, device).model);
    EXPECT_NEAR(FastestIteration(trace, model).seconds() / recorded.seconds(), 1, 0.1) << workload;
  }
  const Device fitted = FitEfficiencies(device, samples);
  for (const auto& [key, efficiency] : fitted.efficiency) {
    if (!key.starts_with("product") && !key.starts_with("attention")) continue;
    EXPECT_NEAR(efficiency / device.efficiency.at(key), 1, 0.15) << key;
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
}  // namespace spillway::testing
