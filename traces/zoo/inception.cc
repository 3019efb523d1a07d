#include <array>
#include <string>
#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

// The modules of Inception v4, named as in Szegedy et al. 2017, figures 3 to 9.
class InceptionV4 {
 public:
  InceptionV4(Network& net, Normalization normalization)
      : net_(net), normalization_(normalization) {}

  // Turns the image into 384 channels at an eighth of its height and width.
  LayerNode Stem(LayerNode x) {
    x = Square("stem.conv1", x, 32, 3, 2);
    x = Square("stem.conv2", x, 32, 3);
    x = Square("stem.conv3", x, 64, 3, 1, 1);
    LayerNode a = net_.MaxPool("stem.pool1", x, {3, 2});
    LayerNode b = Square("stem.conv4", x, 96, 3, 2);
    x = net_.Concat("stem.concat1", std::array{a, b});
    a = Square("stem.a.3x3", Square("stem.a.1x1", x, 64, 1), 96, 3);
    b = Across("stem.b.1x7", Square("stem.b.1x1", x, 64, 1), 64, 7);
    b = Square("stem.b.3x3", Down("stem.b.7x1", b, 64, 7), 96, 3);
    x = net_.Concat("stem.concat2", std::array{a, b});
    a = Square("stem.conv5", x, 192, 3, 2);
    b = net_.MaxPool("stem.pool2", x, {3, 2});
    return net_.Concat("stem.concat3", std::array{a, b});
  }

  LayerNode A(const std::string& name, LayerNode x) {
    const LayerNode a = Square(name + ".1x1", x, 96, 1);
    const LayerNode b = Square(name + ".3x3", Square(name + ".3x3_reduce", x, 64, 1), 96, 3, 1, 1);
    LayerNode c = Square(name + ".double_reduce", x, 64, 1);
    c = Square(name + ".double1", c, 96, 3, 1, 1);
    c = Square(name + ".double2", c, 96, 3, 1, 1);
    const LayerNode d = Square(name + ".pool_proj", AveragePool(name, x), 96, 1);
    return net_.Concat(name + ".concat", std::array{a, b, c, d});
  }

  LayerNode ReductionA(const std::string& name, LayerNode x) {
    const LayerNode a = Square(name + ".3x3", x, 384, 3, 2);
    LayerNode b = Square(name + ".double_reduce", x, 192, 1);
    b = Square(name + ".double1", b, 224, 3, 1, 1);
    b = Square(name + ".double2", b, 256, 3, 2);
    const LayerNode c = net_.MaxPool(name + ".pool", x, {3, 2});
    return net_.Concat(name + ".concat", std::array{a, b, c});
  }

  LayerNode B(const std::string& name, LayerNode x) {
    const LayerNode a = Square(name + ".1x1", x, 384, 1);
    LayerNode b = Square(name + ".7x7_reduce", x, 192, 1);
    b = Down(name + ".7x1", Across(name + ".1x7", b, 224, 7), 256, 7);
    LayerNode c = Square(name + ".double_reduce", x, 192, 1);
    c = Across(name + ".double_1x7a", Down(name + ".double_7x1a", c, 192, 7), 224, 7);
    c = Across(name + ".double_1x7b", Down(name + ".double_7x1b", c, 224, 7), 256, 7);
    const LayerNode d = Square(name + ".pool_proj", AveragePool(name, x), 128, 1);
    return net_.Concat(name + ".concat", std::array{a, b, c, d});
  }

  LayerNode ReductionB(const std::string& name, LayerNode x) {
    const LayerNode a = Square(name + ".3x3", Square(name + ".3x3_reduce", x, 192, 1), 192, 3, 2);
    LayerNode b = Square(name + ".7x7_reduce", x, 256, 1);
    b = Down(name + ".7x1", Across(name + ".1x7", b, 256, 7), 320, 7);
    b = Square(name + ".7x7_3x3", b, 320, 3, 2);
    const LayerNode c = net_.MaxPool(name + ".pool", x, {3, 2});
    return net_.Concat(name + ".concat", std::array{a, b, c});
  }

  LayerNode C(const std::string& name, LayerNode x) {
    const LayerNode a = Square(name + ".1x1", x, 256, 1);
    const LayerNode b = Square(name + ".3x3_reduce", x, 384, 1);
    const LayerNode b1 = Across(name + ".1x3", b, 256, 3);
    const LayerNode b2 = Down(name + ".3x1", b, 256, 3);
    LayerNode c = Square(name + ".double_reduce", x, 384, 1);
    c = Across(name + ".double_1x3", Down(name + ".double_3x1", c, 448, 3), 512, 3);
    const LayerNode c1 = Across(name + ".double_1x3_out", c, 256, 3);
    const LayerNode c2 = Down(name + ".double_3x1_out", c, 256, 3);
    const LayerNode d = Square(name + ".pool_proj", AveragePool(name, x), 256, 1);
    return net_.Concat(name + ".concat", std::array{a, b1, b2, c1, c2, d});
  }

 private:
  LayerNode Convolve(const std::string& name, LayerNode x, ConvSpec spec) {
    const bool normalized = normalization_ == Normalization::kEveryConv || x == net_.image();
    spec.bias = !normalized;
    return normalized ? net_.ConvNormRelu(name, x, spec) : net_.ConvRelu(name, x, spec);
  }
  LayerNode Square(const std::string& name, LayerNode x, int64_t channels, int64_t kernel,
                   int64_t stride = 1, int64_t pad = 0) {
    return Convolve(name, x, ConvSpec::Square(channels, kernel, stride, pad));
  }
  // Convolutions with a row and with a column of `kernel`. Both keep the height and width.
  LayerNode Across(const std::string& name, LayerNode x, int64_t channels, int64_t kernel) {
    return Convolve(name, x, {.channels = channels, .kernel_w = kernel, .pad_w = kernel / 2});
  }
  LayerNode Down(const std::string& name, LayerNode x, int64_t channels, int64_t kernel) {
    return Convolve(name, x, {.channels = channels, .kernel_h = kernel, .pad_h = kernel / 2});
  }
  LayerNode AveragePool(const std::string& module, LayerNode x) {
    return net_.AvgPool(module + ".pool", x, {3, 1, 1});
  }

  Network& net_;
  const Normalization normalization_;
};

}  // namespace

Network BuildInceptionV4(std::string name, int64_t image, Normalization normalization) {
  Network net(std::move(name), {3, image, image});
  InceptionV4 modules(net, normalization);
  LayerNode x = modules.Stem(net.image());
  for (int i = 1; i <= 4; ++i) x = modules.A("a" + std::to_string(i), x);
  x = modules.ReductionA("reduction_a", x);
  for (int i = 1; i <= 7; ++i) x = modules.B("b" + std::to_string(i), x);
  x = modules.ReductionB("reduction_b", x);
  for (int i = 1; i <= 3; ++i) x = modules.C("c" + std::to_string(i), x);
  x = net.AvgPool("pool", x, {net.layer(x).output.height, 1});
  x = net.Linear("fc", net.Dropout("drop", x, 0.2), 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway::traces
