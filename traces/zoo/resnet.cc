#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

ConvSpec Unbiased(int64_t channels, int64_t kernel, int64_t stride = 1) {
  ConvSpec spec = ConvSpec::Square(channels, kernel, stride, kernel / 2);
  spec.bias = false;
  return spec;
}

// Adds a residual block with `channels` inner channels.
LayerNode AddBlock(Network& net, const std::string& name, LayerNode x, ResidualBlock type,
                   int64_t channels, int64_t stride) {
  const bool bottleneck = type == ResidualBlock::kBottleneck;
  const int64_t out = bottleneck ? 4 * channels : channels;
  LayerNode branch = x;
  if (bottleneck) {
    branch = net.ConvNormRelu(name + ".conv1", branch, Unbiased(channels, 1, stride));
    branch = net.ConvNormRelu(name + ".conv2", branch, Unbiased(channels, 3));
    branch = net.ConvNorm(name + ".conv3", branch, Unbiased(out, 1));
  } else {
    branch = net.ConvNormRelu(name + ".conv1", branch, Unbiased(channels, 3, stride));
    branch = net.ConvNorm(name + ".conv2", branch, Unbiased(out, 3));
  }
  LayerNode shortcut = x;
  if (stride != 1 || net.layer(x).output.channels != out) {
    shortcut = net.ConvNorm(name + ".shortcut", x, Unbiased(out, 1, stride));
  }
  return net.Relu(name + ".relu", net.Add(name + ".add", branch, shortcut));
}

}  // namespace

Network BuildResNet(std::string name, int64_t image, ResidualBlock block,
                    const std::array<int, 4>& blocks) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.ConvNormRelu("conv1", net.image(), Unbiased(64, 7, 2));
  const int64_t unpadded = (net.layer(x).output.height - 3) / 2 + 1;
  x = net.MaxPool("pool1", x, {3, 2, unpadded % 8 == 0 ? 0 : 1});
  int64_t channels = 64;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int i = 1; i <= blocks[stage]; ++i) {
      const bool halves = stage > 0 && i == 1;
      x = AddBlock(net, fmt::format("res{}_{}", stage + 2, i), x, block, channels, halves ? 2 : 1);
    }
    channels *= 2;
  }
  x = net.AvgPool("pool5", x, {net.layer(x).output.height, 1});
  x = net.Linear("fc", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway::traces
