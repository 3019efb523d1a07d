// Tests the numbers that the SuperNeurons paper prints, and its claims: the peak comes down to
// max(l_i), and the tensor cache moves nothing while the network fits.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/run.h"
#include "policies/parts/superneurons_steps.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/papers.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

double Ours(const std::string& item) {
  EXPECT_EQ(Select(item).size(), 1u) << item;
  return ReproduceOne(item).ours.value_or(-1);
}

TEST(SuperNeuronsPaperTest, EveryPrintedNumberIsReproduced) {
  int judged = 0;
  for (const PaperItem& item : Select("superneurons")) {
    const Reproduction result = Reproduce(item);
    ASSERT_TRUE(result.ours) << item.value.item;
    EXPECT_TRUE(result.passes) << item.value.item << ": " << *result.ours_exact;
    judged += result.judged ? 1 : 0;
  }
  EXPECT_GE(judged, 30);
}

// In a residual network, the speed-centric strategy recomputes each dropped output that backward
// reads once. A block has five such outputs: a batch normalisation and a ReLU after each of two
// convolutions, and the ReLU after the sum. Outside the blocks there are three in the first segment
// and the last pool.
TEST(SuperNeuronsPaperTest, TableOneFollowsFromTheRules) {
  for (const auto& [network, blocks] :
       {std::pair{"ResNet50", 16}, {"ResNet101", 33}, {"ResNet152", 50}, {"resnet(1,2,1,1)", 5}}) {
    const std::string prefix = std::string("Tab1 ") + network + " extra ";
    EXPECT_EQ(Ours(prefix + "(speed-centric)"), 5 * blocks + 4) << network;
    // A segment of n outputs runs n (n + 1) / 2 ops again, except for the batch normalisation that
    // reads conv1.y.
    EXPECT_EQ(Ours(prefix + "(mem-centric)"), 7 * blocks + 6) << network;
    EXPECT_EQ(Ours(prefix + "(cost-centric)"), 5 * blocks + 5) << network;
  }
}

TEST(SuperNeuronsPaperTest, OtherNetworksAreComputedToo) {
  for (const char* item :
       {"Tab1 VGG16 extra (mem-centric)", "Tab1 ResNet152(16) cost-centric peak",
        "Tab1 googlenet(4) extra (speed-centric)", "Fig2 vgg19 B=8 GB", "layers in ResNet50",
        "Fig10 recompute step 44 MB", "Fig10 offload step 39 tensors", "resnet50 depth",
        "Tab2 densenet121(4) speedup", "Tab3 VGG16(8) without GB",
        "Fig8 googlenet(4) CONCAT time %", "Fig11 googlenet without",
        "Fig12 VGG16(16) 6GB conv1_2.f assigned"}) {
    EXPECT_GT(Ours(item), 0) << item;
  }
  for (const char* item :
       {"Tab1 VGG17 extra (mem-centric)", "Tab1 VGG16 extra (best-centric)",
        "Fig10 liveness step 47 MB", "Floor AlexNet best-fit", "Fig2 AlexNet B=0 GB"}) {
    EXPECT_THROW(Select(item), UsageError) << item;
  }
}

// "A training iteration consists of 1 -> 23 forward steps and 24 -> 46 backward steps." Step 25 has
// the most live tensors, but not the most live bytes.
TEST(SuperNeuronsPaperTest, FigureTenHasFortySixStepsOfThreeTechniques) {
  EXPECT_EQ(Select("superneurons-Fig10").size(), 46u * 3 * 2);
  double most = 0;
  for (int step = 1; step <= 46; ++step) {
    const std::string end = " step " + std::to_string(step) + " MB";
    const double liveness = Ours("Fig10 liveness" + end), offload = Ours("Fig10 offload" + end),
                 recompute = Ours("Fig10 recompute" + end);
    EXPECT_LE(offload, liveness) << step;
    // A backward step that recomputes a segment may hold more than if the segment had been kept.
    if (step <= 23) {
      EXPECT_LE(recompute, offload) << step;
    }
    most = std::max(most, Ours("Fig10 liveness step " + std::to_string(step) + " tensors"));
  }
  EXPECT_EQ(Ours("Fig10 liveness step 25 tensors"), most);
}

constexpr std::array kFigureNetworks{"AlexNet",  "VGG16",     "InceptionV4",
                                     "ResNet50", "ResNet101", "ResNet152"};

// Table 2: "the speedups on nonlinear networks are more significant than linear networks". They
// also grow with the depth.
TEST(SuperNeuronsPaperTest, ThePoolHelpsDeepNetworksMost) {
  const auto speedup = [](const std::string& network) {
    const double cuda = Ours("Tab2 " + network + " CUDA"), pool = Ours("Tab2 " + network + " Ours");
    const double printed = Ours("Tab2 " + network + " speedup");
    EXPECT_NEAR(printed, pool / cuda, 0.01) << network;
    return pool / cuda;
  };
  const double linear = std::max(speedup("AlexNet"), speedup("VGG16"));
  EXPECT_GT(std::min(speedup("AlexNet"), speedup("VGG16")), 1);
  EXPECT_GT(speedup("InceptionV4"), linear);
  EXPECT_GT(speedup("ResNet50"), linear);
  EXPECT_GT(speedup("ResNet101"), speedup("ResNet50"));
  EXPECT_GT(speedup("ResNet152"), speedup("ResNet101"));
}

// Table 3: with the cache there are no copies up to 896 images. Without it copies "linearly
// increase along batch sizes": the outputs of all five convolutions, out and back.
TEST(SuperNeuronsPaperTest, WithoutTheCacheCopiesGrowWithTheBatch) {
  for (const int batch : {256, 384, 512, 640, 896}) {
    const std::string item = "Tab3 AlexNet(" + std::to_string(batch) + ")";
    EXPECT_EQ(Ours(item + " cache GB"), 0) << batch;
    const double floats = 96 * 55 * 55 + 256 * 27 * 27 + (384 + 384 + 256) * 13 * 13;
    EXPECT_NEAR(Ours(item + " without GB"), 2 * 4 * floats * batch / 1e9, 0.005) << batch;
  }
}

// Section 2.1 and Fig. 2: workspaces cost memory and save time.
TEST(SuperNeuronsPaperTest, WorkspacesCostMemoryAndSaveTime) {
  for (const std::string network : kFigureNetworks) {
    const std::string item = "Fig2 " + network + (network == "AlexNet" ? " B=200 " : " B=32 ");
    EXPECT_GT(Ours(item + "workspaces GB"), 1.2 * Ours(item + "GB")) << network;
    EXPECT_GT(Ours(item + "speedup x"), 1.2) << network;
  }
}

// Fig. 8 and its text: convolutions take over half of the time (section 3.5). The forward steps of
// POOL, ACT, LRN and BN take under a tenth (3.4). DROPOUT, SOFTMAX and FC take less than 1 % of the
// memory each (3.3.1).
TEST(SuperNeuronsPaperTest, TimeAndMemoryByLayerType) {
  const std::array types{"CONV", "POOL",    "ACT",    "BN",   "LRN", "DROPOUT",
                         "FC",   "SOFTMAX", "CONCAT", "JOIN", "FORK"};
  for (const std::string network : kFigureNetworks) {
    const auto share = [&](const std::string& type, const std::string& column) {
      return Ours("Fig8 " + network + " " + type + " " + column + " %");
    };
    double time = 0, memory = 0, forward = 0;
    for (const char* type : types) {
      time += share(type, "time");
      memory += share(type, "memory");
      EXPECT_LE(share(type, "forward"), share(type, "time")) << network << " " << type;
    }
    EXPECT_NEAR(time, 100, 1e-6) << network;
    EXPECT_NEAR(memory, 100, 1e-6) << network;
    EXPECT_GT(share("CONV", "time"), 50) << network;
    for (const char* type : {"POOL", "ACT", "LRN", "BN"}) forward += share(type, "forward");
    EXPECT_LT(forward, 10) << network;
    for (const char* type : {"DROPOUT", "SOFTMAX", "FC"}) {
      EXPECT_LT(share(type, "memory"), 1) << network << " " << type;
    }
  }
}

// The shares of time equal the shares of the kernels in a simulated in-core iteration.
TEST(SuperNeuronsPaperTest, TimeByLayerTypeIsThatOfASimulatedIteration) {
  const Device device = LoadDevice("k40c");
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  for (const auto& [network, workload] :
       {std::pair{"AlexNet(16)", "alexnet-227:16"}, {"ResNet50(4)", "resnet50@227:4"}}) {
    const Trace trace = LoadTrace({workload, "superneurons", true});
    const auto policy = registry.Make("liveness:algo=performance");
    const Report report =
        testing::Simulate({Borrow(trace), device, Borrow(cost), Bytes::Unlimited(), "stitched"},
                          *policy)
            .report;
    std::map<OpType, double> time;
    double all = 0;
    for (const TimelineEntry& entry : report.timeline) {
      const Op& op = trace.op(entry.op);
      if (entry.kind != CommandKind::kKernel || op.phase == Phase::kUpdate) continue;
      time[op.type] += entry.nominal.seconds();
      all += entry.nominal.seconds();
    }
    ASSERT_GT(all, 0);
    for (const auto& [type, name] :
         {std::pair{OpType::kConv2d, "CONV"}, {OpType::kRelu, "ACT"}, {OpType::kLinear, "FC"}}) {
      EXPECT_NEAR(Ours(fmt::format("Fig8 {} {} time %", network, name)), 100 * time[type] / all,
                  1e-6)
          << network << " " << name;
    }
  }
}

// Fig. 11: "up to 33.33% performance loss without using Tensor Cache".
TEST(SuperNeuronsPaperTest, TheCacheSavesUpToAThird) {
  for (const std::string network : kFigureNetworks) {
    const double without = Ours("Fig11 " + network + " without");
    EXPECT_LT(without, 1) << network;
    EXPECT_GE(without, 0.66) << network;
  }
}

// Fig. 12: "the most workspace for the maximal speed at batch 100", and less workspace at 300.
TEST(SuperNeuronsPaperTest, WorkspacesGiveWayInASmallPool) {
  const auto total = [](const std::string& setup, const char* column) {
    double sum = 0;
    for (const char* phase : {"f", "b"}) {
      for (int conv = 1; conv <= 5; ++conv) {
        sum += Ours(fmt::format("Fig12 {} conv{}.{} {}", setup, conv, phase, column));
      }
    }
    return sum;
  };
  EXPECT_EQ(total("AlexNet(100) 3GB", "assigned"), total("AlexNet(100) 3GB", "fastest"));
  EXPECT_LT(total("AlexNet(300) 3GB", "assigned"), total("AlexNet(300) 3GB", "fastest"));
  EXPECT_GT(total("AlexNet(300) 5GB", "assigned"), total("AlexNet(300) 3GB", "assigned"));
  EXPECT_GT(Ours("Fig12 AlexNet(300) 5GB img/s"), Ours("Fig12 AlexNet(300) 3GB img/s"));
}

// Fig. 13 uses the batches of Table 5, in which MXNet has no batch for Inception v4.
TEST(SuperNeuronsPaperTest, TableFiveInMemory) {
  EXPECT_EQ(Ours("Fig13 ResNet50 Caffe x"), 1);
  EXPECT_GT(Ours("Fig13 ResNet50 SuperNeurons x"), Ours("Fig13 ResNet50 TensorFlow x"));
  EXPECT_EQ(Ours("Fig13 ResNet50 Torch GB"), Ours("Fig2 ResNet50 B=32 workspaces GB"));
  EXPECT_THROW(Select("Fig13 InceptionV4 MXNet GB"), UsageError);
}

TEST(SuperNeuronsPaperTest, ItemsOfTablesAndFiguresAreSelectedByName) {
  for (const auto& [figure, count] : {std::pair{"Tab2", 19},
                                      {"Tab3", 12},
                                      {"Fig2", 18},
                                      {"Fig8", 198},
                                      {"Fig11", 6},
                                      {"Fig12", 63},
                                      {"Fig13", 56}}) {
    const auto selected = Select(std::string("superneurons-") + figure);
    EXPECT_EQ(selected.size(), static_cast<size_t>(count)) << figure;
    for (const PaperItem& item : selected) {
      EXPECT_EQ(item.value.paper, "superneurons") << item.value.item;
    }
  }
  EXPECT_EQ(Select("superneurons-Tab2").front().value.printed, 359.4);
  for (const char* item : {"Tab2 AlexNet ours", "Tab2 AlexNet overhead", "Tab3 AlexNet(0) cache GB",
                           "Tab3 cache GB", "Fig8 AlexNet RNN time %", "Fig8 AlexNet CONV time",
                           "Fig11 AlexNet with", "Fig12 AlexNet(100) 0GB img/s",
                           "Fig12 AlexNet(100) 3GB conv1 assigned", "Fig13 AlexNet Theano GB"}) {
    EXPECT_THROW(Select(item), UsageError) << item;
  }
}

class K40Test : public ::testing::Test {
 protected:
  K40Test() : device_(LoadDevice("k40c")), cost_(device_) { RegisterBuiltinPolicies(registry_); }

  Report Run(const Trace& trace, const std::string& policy, Bytes memory,
             const std::string& allocator = "best-fit") const {
    const Report report =
        testing::Simulate({Borrow(trace), device_, Borrow(cost_), memory, allocator},
                          *registry_.Make(policy))
            .report;
    EXPECT_THAT(Check(trace, report), IsEmpty()) << trace.name << " " << policy;
    return report;
  }

  Device device_;
  RooflineCostModel cost_;
  PolicyRegistry registry_;
};

// Section 3.4: "peak_m = max(l_i)". First fit in blocks of 1 KiB needs at most a tenth more,
// stitched pages a fiftieth.
TEST_F(K40Test, EverythingOnComesDownToTheLargestLayer) {
  for (const std::string network :
       {"AlexNet", "VGG16", "ResNet50", "ResNet101", "ResNet152", "InceptionV4", "DenseNet121"}) {
    EXPECT_LE(Ours("Floor " + network + " first-fit"), 1.1) << network;
    EXPECT_LE(Ours("Floor " + network + " stitched"), 1.02) << network;
  }
}

// A network that fits in little memory fits in any larger memory. Statistics must not cut an arena
// into pieces, and an op's own inputs must not be evicted and recomputed beside its outputs.
TEST_F(K40Test, WhatFitsInLittleMemoryFitsInMore) {
  for (const char* workload : {"vgg16@227:32", "resnet50@227:32", "densenet121:32"}) {
    const Trace trace = LoadTrace({workload, "superneurons", true});
    Bytes kept, gradients;
    for (const Tensor& tensor : trace.tensors) {
      const bool persists =
          tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
      if (persists) kept += tensor.size;
      if (tensor.kind == TensorKind::kParameterGradient) gradients += tensor.size;
    }
    const Bytes bound = LayerBound(trace, Bytes(1));
    for (int percent = 108; percent <= 200; percent += 4) {
      const Bytes layer = (bound - kept) * percent;
      const Report report =
          Run(trace, "superneurons", kept + gradients + Bytes(layer.count() / 100),
              "first-fit:granularity=1KiB");
      EXPECT_TRUE(report.fits()) << workload << " in " << percent << " %";
    }
  }
}

// Table 3: "offloading is unnecessary if a network can fit into the GPU DRAM".
TEST_F(K40Test, TheCacheMovesNothingWhileTheNetworkFits) {
  for (const char* workload : {"alexnet-227:200", "resnet50@227:16", "googlenet:32"}) {
    const Trace trace = LoadTrace({workload, "superneurons", true});
    for (const char* policy : {"superneurons", "superneurons:cache=belady,offload=conv",
                               "superneurons:cache=fifo,recompute=none"}) {
      const Metrics cached = Run(trace, policy, device_.memory).metrics;
      EXPECT_EQ(cached.offloaded, Bytes(0)) << workload << " " << policy;
      EXPECT_EQ(cached.prefetched, Bytes(0)) << workload << " " << policy;
      EXPECT_EQ(cached.pinned_peak, Bytes(0)) << workload << " " << policy;
    }
    EXPECT_GT(Run(trace, "superneurons:cache=none", device_.memory).metrics.offloaded, Bytes(0));
  }
}

// Under pressure a cache moves less than a policy that offloads everything at once.
TEST_F(K40Test, TheCacheMovesLessThanEagerOffloading) {
  const Trace trace = LoadTrace({"alexnet-227:200", "superneurons", true});
  const Bytes eager =
      Run(trace, "superneurons:cache=none,workspace=none", Bytes::GiB(2)).metrics.offloaded;
  for (const char* cache : {"lru", "belady", "fifo"}) {
    const Report report =
        Run(trace, std::string("superneurons:workspace=none,cache=") + cache, Bytes::MiB(1500));
    ASSERT_TRUE(report.fits()) << cache;
    EXPECT_GT(report.metrics.offloaded, Bytes(0)) << cache;
    EXPECT_LT(report.metrics.offloaded, eager) << cache;
  }
}

// Section 3.5: if less memory is free, workspaces shrink and kernels become slower.
TEST_F(K40Test, DynamicWorkspacesUseWhatIsFree) {
  const Trace trace = LoadTrace({"alexnet-227:200", "superneurons", true});
  const auto compute = [&](const std::string& policy, Bytes memory) {
    const Report report = Run(trace, policy, memory);
    EXPECT_TRUE(report.fits()) << policy;
    return report.metrics.compute;
  };
  const Duration none = compute("superneurons:workspace=none", device_.memory);
  const Duration roomy = compute("superneurons", device_.memory);
  EXPECT_LT(roomy, none);
  EXPECT_EQ(roomy, compute("superneurons:workspace=static", device_.memory));
  EXPECT_GT(compute("superneurons", Bytes::MiB(1500)), roomy);
}

}  // namespace
}  // namespace spillway::testing
