#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

ConvSpec Unbiased(int64_t channels, int64_t kernel, int64_t stride = 1) {
  ConvSpec spec = ConvSpec::Square(channels, kernel, stride, kernel / 2);
  spec.bias = false;
  return spec;
}

LayerNode NormRelu(Network& net, const std::string& name, LayerNode x) {
  return net.Relu(name + ".relu", net.BatchNorm(name, x));
}

// Returns the output of the layer, computed from the outputs of all earlier layers of the block.
LayerNode AddLayer(Network& net, const std::string& name, LayerNode x, const DenseNetSpec& spec) {
  int input = 1;
  if (spec.bottleneck) {
    x = NormRelu(net, name + ".norm1", x);
    x = net.Conv(name + ".conv1", x, Unbiased(4 * spec.growth, 1));
    input = 2;
  }
  x = NormRelu(net, fmt::format("{}.norm{}", name, input), x);
  return net.Conv(fmt::format("{}.conv{}", name, input), x, Unbiased(spec.growth, 3));
}

}  // namespace

Network BuildDenseNet(std::string name, int64_t image, const DenseNetSpec& spec) {
  SPILLWAY_CHECK(!spec.blocks.empty());
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  if (spec.bottleneck) {
    x = net.ConvNormRelu("conv0", x, Unbiased(2 * spec.growth, 7, 2));
    x = net.MaxPool("pool0", x, {3, 2, 1});
  } else {
    x = net.Conv("conv0", x, Unbiased(16, 3));
  }
  for (size_t block = 1; block <= spec.blocks.size(); ++block) {
    for (int i = 1; i <= spec.blocks[block - 1]; ++i) {
      const std::string layer = fmt::format("dense{}_{}", block, i);
      x = net.Concat(layer + ".concat", std::array{x, AddLayer(net, layer, x, spec)});
    }
    if (block == spec.blocks.size()) break;
    const std::string transition = fmt::format("transition{}", block);
    const int64_t channels = net.layer(x).output.channels;
    x = NormRelu(net, transition + ".norm", x);
    x = net.Conv(transition + ".conv", x, Unbiased(spec.bottleneck ? channels / 2 : channels, 1));
    x = net.AvgPool(transition + ".pool", x, {2, 2});
  }
  x = NormRelu(net, "norm", x);
  x = net.AvgPool("pool", x, {net.layer(x).output.height, 1});
  net.SoftmaxLoss("softmax", net.Linear("fc", x, spec.classes));
  return net;
}

}  // namespace spillway::traces
