#include "traces/lowering/lowering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/testing/lookup.h"
#include "traces/base/error.h"
#include "traces/liveness.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// data -> conv1 -> relu -> {pool, conv2} -> concat -> fc -> softmax
Network ForkedNetwork() {
  Network net("forked", {3, 8, 8});
  LayerNode x = net.ConvRelu("conv1", net.image(), ConvSpec::Square(4, 3, 1, 1));
  const LayerNode pool = net.MaxPool("pool", x, {3, 1, 1});
  const LayerNode conv2 = net.Conv("conv2", x, ConvSpec::Square(6, 1));
  x = net.Concat("concat", std::array{pool, conv2});
  net.SoftmaxLoss("softmax", net.Linear("fc", x, 10));
  return net;
}

Bytes SumOf(const Trace& trace, TensorKind kind) {
  Bytes sum;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind == kind && !tensor.alias_of) sum += tensor.size;
  }
  return sum;
}

TEST(GraphTest, ShapesFollowTheWindows) {
  Network net("n", {3, 224, 224});
  const LayerNode conv = net.Conv("c", net.image(), ConvSpec::Square(64, 11, 4, 2));
  EXPECT_EQ(net.layer(conv).output, (Shape{64, 55, 55}));
  EXPECT_EQ(net.layer(net.MaxPool("p", conv, {3, 2})).output, (Shape{64, 27, 27}));
  // 55 rows make ceil(53 / 2) + 1 = 28 windows; the last window extends beyond the edge.
  EXPECT_EQ(net.layer(net.MaxPool("q", conv, {2, 2, 0, true})).output, (Shape{64, 28, 28}));
}

TEST(GraphTest, ImpossibleGeometryNamesTheLayer) {
  Network net("n", {3, 4, 4});
  try {
    net.Conv("big", net.image(), ConvSpec::Square(8, 7));
    FAIL() << "a 7x7 window was fitted into 4x4";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'big'"));
  }
  ConvSpec grouped = ConvSpec::Square(8, 1);
  grouped.groups = 2;
  EXPECT_THROW(net.Conv("g", net.image(), grouped), InputError);
  const LayerNode a = net.Conv("a", net.image(), ConvSpec::Square(2, 1));
  const LayerNode b = net.Conv("b", net.image(), ConvSpec::Square(2, 3));
  EXPECT_THROW(net.Concat("c", std::array{a, b}), InputError);
  EXPECT_THROW(net.Add("c", a, b), InputError);
  EXPECT_THROW(net.Dropout("d", a, 1), InputError);
  EXPECT_THROW(net.Lrn("l", a, {.size = 0}), InputError);
}

TEST(LoweringTest, ForwardOperandsFollowTheContract) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "torch", true});
  const Op& conv = FindOp(trace, "conv1.fwd");
  EXPECT_THAT(Names(trace, conv.inputs), ElementsAre("data.y", "conv1.weight", "conv1.bias"));
  EXPECT_THAT(Names(trace, conv.outputs), ElementsAre("conv1.y"));
  EXPECT_EQ(conv.slots[0].flops, 2LL * 2 * 4 * 8 * 8 * 3 * 3 * 3);
  EXPECT_THAT(conv.slots[0].signature, HasSubstr("conv2d.fwd in=3x8x8 out=4x8x8 kernel=3x3"));
  EXPECT_EQ(trace.Root(FindOp(trace, "conv1.relu.fwd").outputs[0]), conv.outputs[0]);
}

// The concatenation passes gradients to both branches. conv2's backward runs first and creates the
// gradient of the shared input; the pool's backward adds to it.
TEST(LoweringTest, ForksAccumulateOneGradient) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "torch", true});
  const Op& conv2 = FindOp(trace, "conv2.bwd");
  const Op& pool = FindOp(trace, "pool.bwd");
  EXPECT_EQ(conv2.outputs[0], pool.outputs[0]);
  EXPECT_EQ(conv2.IntAttribute("accumulate"), 0);
  EXPECT_EQ(pool.IntAttribute("accumulate"), 1);
  EXPECT_EQ(pool.inputs.back(), pool.outputs[0]);
  EXPECT_THAT(Names(trace, FindOp(trace, "concat.bwd").outputs),
              ElementsAre("pool.dy", "conv2.dy"));
}

TEST(LoweringTest, TheImageHasNoGradient) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "torch", true});
  const Op& conv1 = FindOp(trace, "conv1.bwd");
  EXPECT_EQ(conv1.IntAttribute("needs_dx"), 0);
  ASSERT_EQ(conv1.slots.size(), 1u);
  EXPECT_EQ(conv1.slots[0].name, "bwd_filter");
  const Op& conv2 = FindOp(trace, "conv2.bwd");
  ASSERT_EQ(conv2.slots.size(), 2u);
  EXPECT_EQ(conv2.slots[0].name, "bwd_data");
}

TEST(LoweringTest, TorchKeepsParameterGradientsUntilTheUpdate) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "torch", true});
  EXPECT_EQ(SumOf(trace, TensorKind::kParameterGradient), SumOf(trace, TensorKind::kParameter));
  EXPECT_EQ(SumOf(trace, TensorKind::kOptimizerState), SumOf(trace, TensorKind::kParameter));
  EXPECT_EQ(trace.ops.back().phase, Phase::kUpdate);
  EXPECT_THAT(Names(trace, FindOp(trace, "fc.update").outputs),
              ElementsAre("fc.weight", "fc.weight_momentum", "fc.bias", "fc.bias_momentum"));
}

TEST(LoweringTest, VdnnUpdatesInsideBackward) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "vdnn", true});
  EXPECT_EQ(SumOf(trace, TensorKind::kParameterGradient), Bytes(0));
  EXPECT_EQ(SumOf(trace, TensorKind::kOptimizerState), Bytes(0));
  const Op& fc = FindOp(trace, "fc.bwd");
  EXPECT_THAT(Names(trace, fc.inputs), ElementsAre("concat.y", "fc.weight", "fc.dy", "fc.bias"));
  EXPECT_THAT(Names(trace, fc.outputs), ElementsAre("concat.dy", "fc.weight", "fc.bias"));
  EXPECT_EQ(trace.ops.back().phase, Phase::kBackward);
}

TEST(LoweringTest, VdnnppHoldsOutputsAndBuffersGradients) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "vdnnpp", true});
  const Trace vdnn = LowerNetwork(ForkedNetwork(), {2, "vdnn", true});
  const Op& fc = FindOp(trace, "fc.bwd");
  EXPECT_THAT(Names(trace, fc.inputs),
              ElementsAre("concat.y", "fc.weight", "fc.dy", "fc.bias", "fc.y"));
  EXPECT_THAT(Names(trace, fc.outputs), ElementsAre("concat.dy", "fc.weight", "fc.bias"));
  EXPECT_THAT(Names(trace, fc.scratch), ElementsAre("fc.dweight", "fc.dbias"));
  EXPECT_EQ(fc.IntAttribute("holds_y"), 1);
  // The output lives until the layer's backward step, not only until the backward step of its ReLU.
  const Liveness liveness(trace);
  const auto& ops = trace.ops;
  const TensorId y = FindOp(trace, "conv1.fwd").outputs[0];
  EXPECT_EQ(ops[Index(*liveness.LastUse(y))].name, "conv1.bwd");
  // The held output is not read, so the work and the signature stay the same.
  const Op& same = FindOp(vdnn, "fc.bwd");
  EXPECT_EQ(fc.slots[0].signature, same.slots[0].signature);
  EXPECT_EQ(fc.traffic(), same.traffic());
}

TEST(LoweringTest, InferenceIsForwardOnly) {
  const Trace trace = LowerNetwork(ForkedNetwork(), {2, "torch", false});
  for (const Op& op : trace.ops) EXPECT_EQ(op.phase, Phase::kForward) << op.name;
  EXPECT_EQ(SumOf(trace, TensorKind::kGradient), Bytes(0));
}

TEST(LoweringTest, UnknownPresetIsAUsageError) {
  try {
    LowerNetwork(ForkedNetwork(), {2, "vdn", true});
    FAIL() << "an unknown preset was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'vdnn'"));
  }
}

TEST(ZooTest, EveryNetworkLowersUnderEveryPreset) {
  for (const ZooEntry& entry : Zoo()) {
    for (const Preset& preset : Presets()) {
      for (const bool training : {true, false}) {
        const Network network = BuildNetwork(entry.name);
        const Trace trace = LowerNetwork(network, {2, preset.name, training});
        EXPECT_EQ(trace.name, entry.name + ":2");
        const auto forks =
            std::count_if(trace.layers.begin(), trace.layers.end(),
                          [](const Layer& layer) { return layer.type == OpType::kFork; });
        EXPECT_EQ(trace.layers.size() - static_cast<size_t>(forks), network.size());
        EXPECT_TRUE(forks == 0 || preset.forks != Forks::kShare);
      }
    }
  }
}

// The parameter counts come from the papers of the networks.
TEST(ZooTest, ParameterCountsAreRight) {
  const auto parameters = [](const char* name) {
    return SumOf(LowerNetwork(BuildNetwork(name), {1, "torch", true}), TensorKind::kParameter)
               .count() /
           4;
  };
  EXPECT_EQ(parameters("alexnet"), 61'100'840);
  EXPECT_EQ(parameters("vgg16"), 138'357'544);
  EXPECT_EQ(parameters("vgg19"), 143'667'240);
  EXPECT_EQ(parameters("googlenet"), 6'998'552);
  EXPECT_EQ(parameters("overfeat"), 145'920'872);
  EXPECT_EQ(parameters("alexnet-227"), 62'378'344);
  EXPECT_EQ(parameters("alexnet-caffe"), 60'965'224);
  EXPECT_EQ(parameters("alexnet-plain"), 62'378'344);
  EXPECT_EQ(parameters("vgg-s"), 102'908'520);
  // vgg116-d and vgg191-d extend D by 20 or 35 times a 3x3 convolution of each group's channels.
  constexpr int64_t kOneMore =
      9 * (64 * 64 + 128 * 128 + 256 * 256 + 2 * 512 * 512) + (64 + 128 + 256 + 2 * 512);
  EXPECT_EQ(parameters("vgg116-d"), 138'357'544 + 20 * kOneMore);
  EXPECT_EQ(parameters("vgg191-d"), 138'357'544 + 35 * kOneMore);
  EXPECT_EQ(parameters("constructed(5)"),
            27 * 64 + 64 + 5 * (64 * 64 + 64 + 25 * 64 * 64 + 64) + 64 * 3 + 3 + 3 * 2 + 2);
  EXPECT_EQ(parameters("resnet18"), 11'689'512);
  EXPECT_EQ(parameters("resnet50"), 25'557'032);
  EXPECT_EQ(parameters("resnet(3,4,6,3)"), 25'557'032);
  EXPECT_EQ(parameters("resnet50@227"), 25'557'032);
  EXPECT_EQ(parameters("resnet101"), 44'549'160);
  EXPECT_EQ(parameters("resnet152"), 60'192'808);
  EXPECT_EQ(parameters("inception-v4"), 42'679'816);
  EXPECT_EQ(parameters("densenet121"), 7'978'856);
  EXPECT_EQ(parameters("densenet(6,12,24,16,k=32)"), 7'978'856);
  EXPECT_EQ(parameters("densenet(6,12,24,16)@256"), 7'978'856);
  EXPECT_EQ(parameters("densenet169"), 14'149'480);
  EXPECT_EQ(parameters("densenet201"), 20'013'928);
  EXPECT_EQ(parameters("densenet161"), 28'681'000);
}

// SuperNeurons prints "221.56 142.38 49.51 49.51" for the outputs of AlexNet's first convolutions
// at batch 200, in MiB. It prints 101.531 and 24.5 for conv1 and pool1 of ResNet-50 at batch 32 and
// 227 x 227.
TEST(ZooTest, SizesAreThoseThatSuperNeuronsPrints) {
  const auto output = [](const Trace& trace, const std::string& name) {
    const auto tensor = std::find_if(trace.tensors.begin(), trace.tensors.end(),
                                     [&](const Tensor& t) { return t.name == name + ".y"; });
    return tensor->size.mib();
  };
  const Trace alexnet = LowerNetwork(BuildNetwork("alexnet-227"), {200, "torch", true});
  EXPECT_EQ(alexnet.layers.size(), 24u);  // SuperNeurons' "23 layers" and the image
  EXPECT_NEAR(output(alexnet, "conv1"), 221.56, 0.005);
  EXPECT_NEAR(output(alexnet, "conv2"), 142.38, 0.005);
  EXPECT_NEAR(output(alexnet, "conv3"), 49.51, 0.005);
  EXPECT_NEAR(output(alexnet, "conv4"), 49.51, 0.005);
  const Trace resnet = LowerNetwork(BuildNetwork("resnet50@227"), {32, "torch", true});
  EXPECT_NEAR(output(resnet, "conv1"), 101.531, 0.0005);
  EXPECT_NEAR(output(resnet, "pool1"), 24.5, 1e-9);
  EXPECT_NEAR(output(resnet, "pool5"), 0.25, 1e-9);
}

// vDNN++, Table III: maps are 224 x 224 x 64 throughout, then 1 x 1.
TEST(ZooTest, ConstructedNetworkIsAsInItsTable) {
  const Network network = BuildNetwork("constructed(5)");
  std::vector<Shape> shapes;
  for (LayerNode node = 1; node < network.size(); ++node) {
    if (network.layer(node).type != OpType::kRelu) shapes.push_back(network.layer(node).output);
  }
  std::vector<Shape> expected(11, Shape{64, 224, 224});
  expected.insert(expected.end(), {{64, 1, 1}, {3, 1, 1}, {2, 1, 1}, {2, 1, 1}});
  EXPECT_EQ(shapes, expected);
}

// The feature maps of AlexNet without padding in conv1: 55, 27, 27, 13, 13, 13, 13, 6.
TEST(ZooTest, PlainAlexNetHasTheMapsOfItsPaper) {
  const Network network = BuildNetwork("alexnet-plain");
  std::vector<int64_t> extents;
  for (LayerNode node = 1; node < network.size(); ++node) {
    const LayerSpec& layer = network.layer(node);
    if (layer.type == OpType::kConv2d || layer.type == OpType::kMaxPool2d) {
      extents.push_back(layer.output.height);
    }
  }
  EXPECT_THAT(extents, ElementsAre(55, 27, 27, 13, 13, 13, 13, 6));
}

// The counts are nodes of the released networks: the image and a fork before each block count too.
TEST(ZooTest, ResNetsHaveTheLayersThatSuperNeuronsCounts) {
  Preset preset = FindPreset("torch");
  preset.forks = Forks::kCopy;
  const auto layers = [&](const char* name) {
    return LowerNetwork(BuildNetwork(name), {.batch = 1}, preset).layers.size();
  };
  EXPECT_EQ(layers("resnet50"), 192u);
  EXPECT_EQ(layers("resnet101"), 379u);
  EXPECT_EQ(layers("resnet152"), 566u);
  EXPECT_EQ(layers("resnet(6,32,788,6)"), 9168u);
}

// The first network has a batch normalisation after every convolution, the second only after the
// first one. The counts include the image and the forks.
TEST(ZooTest, InceptionHasTheLayersThatSuperNeuronsCounts) {
  Preset preset = FindPreset("torch");
  preset.forks = Forks::kCopy;
  for (const auto& [name, layers] :
       {std::pair("inception-v4", 514u), std::pair("inception-v4-nobn", 366u)}) {
    const Trace trace = LowerNetwork(BuildNetwork(name), {.batch = 1}, preset);
    EXPECT_EQ(trace.layers.size(), layers) << name;
    const auto count = [&](std::initializer_list<OpType> types) {
      return std::count_if(trace.layers.begin(), trace.layers.end(), [&](const Layer& layer) {
        return std::find(types.begin(), types.end(), layer.type) != types.end();
      });
    };
    EXPECT_EQ(count({OpType::kConv2d}), 149) << name;
    EXPECT_EQ(count({OpType::kFork}), 25) << name;
    EXPECT_EQ(count({OpType::kConcat}), 19) << name;
    EXPECT_EQ(count({OpType::kMaxPool2d, OpType::kAvgPool2d}), 19) << name;
  }
}

// The output of each module of Inception v4; see Szegedy et al. 2017, figure 9.
TEST(ZooTest, InceptionModulesHaveTheirPublishedSizes) {
  const Network network = BuildNetwork("inception-v4");
  std::map<std::string, Shape> shapes;
  for (LayerNode node = 0; node < network.size(); ++node) {
    shapes[network.layer(node).name] = network.layer(node).output;
  }
  EXPECT_EQ(shapes["stem.concat3"], (Shape{384, 35, 35}));
  EXPECT_EQ(shapes["a4.concat"], (Shape{384, 35, 35}));
  EXPECT_EQ(shapes["reduction_a.concat"], (Shape{1024, 17, 17}));
  EXPECT_EQ(shapes["b7.concat"], (Shape{1024, 17, 17}));
  EXPECT_EQ(shapes["reduction_b.concat"], (Shape{1536, 8, 8}));
  EXPECT_EQ(shapes["c3.concat"], (Shape{1536, 8, 8}));
  EXPECT_EQ(shapes["drop"], (Shape{1536, 1, 1}));
}

// The depth is the number of convolutions and linear layers, the width the number of channels
// before the classifier.
TEST(ZooTest, DenseNetsAreAsDeepAndWideAsTheirNames) {
  const auto depth_and_width = [](const char* name) {
    const Network network = BuildNetwork(name);
    std::pair<int64_t, int64_t> result{1, 0};  // the linear layer counts
    for (LayerNode node = 0; node < network.size(); ++node) {
      const LayerSpec& layer = network.layer(node);
      if (layer.type == OpType::kConv2d) ++result.first;
      if (layer.name == "norm") result.second = layer.output.channels;
    }
    return result;
  };
  EXPECT_EQ(depth_and_width("densenet121"), std::pair(int64_t{121}, int64_t{1024}));
  EXPECT_EQ(depth_and_width("densenet169"), std::pair(int64_t{169}, int64_t{1664}));
  EXPECT_EQ(depth_and_width("densenet201"), std::pair(int64_t{201}, int64_t{1920}));
  EXPECT_EQ(depth_and_width("densenet161"), std::pair(int64_t{161}, int64_t{2208}));
  EXPECT_EQ(depth_and_width("densenet40"), std::pair(int64_t{40}, int64_t{16 + 36 * 40}));
  EXPECT_EQ(depth_and_width("densenet(2,3,k=8)"),
            std::pair(int64_t{1 + 2 * 5 + 1 + 1}, int64_t{(16 + 2 * 8) / 2 + 3 * 8}));
}

// The published sizes of the stages are 56, 28, 14 and 7.
TEST(ZooTest, ResNetsHalveEvenlyAtEitherSize) {
  for (const char* name : {"resnet18", "resnet18@227", "resnet50", "resnet50@227"}) {
    const Network network = BuildNetwork(name);
    std::set<int64_t> extents;
    for (LayerNode node = 1; node < network.size(); ++node) {
      if (network.layer(node).type == OpType::kAdd) {
        extents.insert(network.layer(node).output.height);
      }
    }
    EXPECT_THAT(extents, ElementsAre(7, 14, 28, 56)) << name;
  }
}

// "VGG-E activations 16154.5 MiB at batch 256" counts every layer's output and the image, with ReLU
// in place.
TEST(ZooTest, VggActivationsAreWhatVdnnCounts) {
  const Trace trace = LowerNetwork(BuildNetwork("vgg19"), {256, "vdnn", true});
  const Bytes labels_and_loss(256 * 4 + 4);
  const Bytes total =
      SumOf(trace, TensorKind::kActivation) + SumOf(trace, TensorKind::kInput) - labels_and_loss;
  EXPECT_NEAR(total.mib(), 16154.5, 0.05);
  EXPECT_NEAR(SumOf(trace, TensorKind::kParameter).mib(), 548.0, 0.05);
}

TEST(ZooTest, CountedWorkspaceFollowsTheFormula) {
  const auto workspace = [](const char* name, int64_t batch) {
    return FftBaselineWorkspace(LowerNetwork(BuildNetwork(name), {batch, "vdnn", true})).mib();
  };
  EXPECT_DOUBLE_EQ(workspace("vgg19", 256), 5200);
  EXPECT_DOUBLE_EQ(workspace("vgg19", 128), 3120);
  EXPECT_NEAR(workspace("alexnet", 128), 307.17, 0.01);  // conv2, backward data

  // A 1x7 filter is larger than 3x3. Its wider side is padded: 26 + 7 - 1 = 32.
  Network row("row", {4, 10, 26});
  const LayerNode stem = row.ConvRelu("conv0", row.image(), ConvSpec::Square(8, 1));
  const LayerNode conv = row.Conv("conv1", stem, {.channels = 16, .kernel_w = 7, .pad_w = 3});
  row.SoftmaxLoss("softmax", row.Linear("fc", conv, 10));
  EXPECT_EQ(FftBaselineWorkspace(LowerNetwork(row, {2, "vdnn", true})),
            Bytes(2 * (16 * 2 + 8 * 16) * (32 * 17 * 8) + 4 * 8 * 16 * 7));
}

TEST(ZooTest, WorkloadsAreParsedStrictly) {
  EXPECT_EQ(ParseWorkload("vgg16:256").batch, 256);
  EXPECT_EQ(ParseWorkload("resnet(1,2,3,4)@64:8").network, "resnet(1,2,3,4)@64");
  for (const char* bad : {"vgg16",
                          "vgg16:",
                          "vgg16:0",
                          "vgg16:-1",
                          "vgg16:2x",
                          "vgg:2",
                          ":2",
                          "vgg16:99999999999999999999",
                          "vgg16@:2",
                          "vgg16@0:2",
                          "vgg16@5000:2",
                          "vgg16@2@2:2",
                          "resnet:2",
                          "resnet(1,2,3):2",
                          "resnet(1,2,3,4:2",
                          "resnet(1,2,3,4,5):2",
                          "densenet:2",
                          "densenet():2",
                          "densenet(k=32):2",
                          "densenet(6,12:2",
                          "densenet(6,,12):2",
                          "densenet(6,0):2",
                          "densenet(6,12,k=0):2",
                          "densenet(6,k=32,12):2",
                          "densenet(6,12,k=32)x:2",
                          "densenet(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1):2",
                          "constructed:2",
                          "constructed():2",
                          "constructed(0):2",
                          "constructed(5:2",
                          "constructed(5,6):2",
                          "resnet(1,2,3,0):2",
                          "resnet(1,2,3,4)x:2",
                          "resnet(1,2,3,10001):2"}) {
    EXPECT_THROW(ParseWorkload(bad), UsageError) << bad;
  }
}

}  // namespace
}  // namespace spillway::testing
