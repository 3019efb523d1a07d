#include <array>
#include <string>
#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

// Output channels of the branches of one inception module. Szegedy et al. 2015, table 1.
struct Inception {
  std::string name;
  int64_t conv1x1;
  int64_t reduce3x3, conv3x3;
  int64_t reduce5x5, conv5x5;
  int64_t pool_proj;
};

LayerNode AddInception(Network& net, LayerNode x, const Inception& spec) {
  const LayerNode a = net.ConvRelu(spec.name + ".1x1", x, ConvSpec::Square(spec.conv1x1, 1));
  LayerNode b = net.ConvRelu(spec.name + ".3x3_reduce", x, ConvSpec::Square(spec.reduce3x3, 1));
  b = net.ConvRelu(spec.name + ".3x3", b, ConvSpec::Square(spec.conv3x3, 3, 1, 1));
  LayerNode c = net.ConvRelu(spec.name + ".5x5_reduce", x, ConvSpec::Square(spec.reduce5x5, 1));
  c = net.ConvRelu(spec.name + ".5x5", c, ConvSpec::Square(spec.conv5x5, 5, 1, 2));
  LayerNode d = net.MaxPool(spec.name + ".pool", x, {3, 1, 1});
  d = net.ConvRelu(spec.name + ".pool_proj", d, ConvSpec::Square(spec.pool_proj, 1));
  return net.Concat(spec.name + ".concat", std::array{a, b, c, d});
}

}  // namespace

Network BuildGoogLeNet(std::string name, int64_t image) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  x = net.ConvRelu("conv1", x, ConvSpec::Square(64, 7, 2, 3));
  x = net.MaxPool("pool1", x, {3, 2, 1});
  x = net.ConvRelu("conv2_reduce", x, ConvSpec::Square(64, 1));
  x = net.ConvRelu("conv2", x, ConvSpec::Square(192, 3, 1, 1));
  x = net.MaxPool("pool2", x, {3, 2, 1});
  x = AddInception(net, x, {"3a", 64, 96, 128, 16, 32, 32});
  x = AddInception(net, x, {"3b", 128, 128, 192, 32, 96, 64});
  x = net.MaxPool("pool3", x, {3, 2, 1});
  x = AddInception(net, x, {"4a", 192, 96, 208, 16, 48, 64});
  x = AddInception(net, x, {"4b", 160, 112, 224, 24, 64, 64});
  x = AddInception(net, x, {"4c", 128, 128, 256, 24, 64, 64});
  x = AddInception(net, x, {"4d", 112, 144, 288, 32, 64, 64});
  x = AddInception(net, x, {"4e", 256, 160, 320, 32, 128, 128});
  x = net.MaxPool("pool4", x, {3, 2, 1});
  x = AddInception(net, x, {"5a", 256, 160, 320, 32, 128, 128});
  x = AddInception(net, x, {"5b", 384, 192, 384, 48, 128, 128});
  x = net.AvgPool("pool5", x, {7, 1});
  x = net.Linear("fc", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway::traces
