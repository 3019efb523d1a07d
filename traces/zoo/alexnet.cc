#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway {

Network BuildAlexNet(std::string name, int64_t image) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  x = net.ConvRelu("conv1", x, ConvSpec::Square(64, 11, 4, 2));
  x = net.MaxPool("pool1", x, {3, 2});
  x = net.ConvRelu("conv2", x, ConvSpec::Square(192, 5, 1, 2));
  x = net.MaxPool("pool2", x, {3, 2});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(384, 3, 1, 1));
  x = net.ConvRelu("conv4", x, ConvSpec::Square(256, 3, 1, 1));
  x = net.ConvRelu("conv5", x, ConvSpec::Square(256, 3, 1, 1));
  x = net.MaxPool("pool5", x, {3, 2});
  x = net.LinearRelu("fc6", x, 4096);
  x = net.LinearRelu("fc7", x, 4096);
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

namespace {

// Builds AlexNet as one tower. With two groups, the second, fourth and fifth convolutions are split
// in two, like the two towers of Krizhevsky et al. 2012.
Network BuildOneTower(std::string name, int64_t image, int64_t groups) {
  const auto grouped = [groups](int64_t channels, int64_t kernel, int64_t pad) {
    ConvSpec spec = ConvSpec::Square(channels, kernel, 1, pad);
    spec.groups = groups;
    return spec;
  };
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  x = net.Lrn("norm1", net.ConvRelu("conv1", x, ConvSpec::Square(96, 11, 4)));
  x = net.MaxPool("pool1", x, {3, 2});
  x = net.Lrn("norm2", net.ConvRelu("conv2", x, grouped(256, 5, 2)));
  x = net.MaxPool("pool2", x, {3, 2});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(384, 3, 1, 1));
  x = net.ConvRelu("conv4", x, grouped(384, 3, 1));
  x = net.ConvRelu("conv5", x, grouped(256, 3, 1));
  x = net.MaxPool("pool5", x, {3, 2});
  x = net.Dropout("drop6", net.LinearRelu("fc6", x, 4096));
  x = net.Dropout("drop7", net.LinearRelu("fc7", x, 4096));
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace

Network BuildAlexNet227(std::string name, int64_t image) {
  return BuildOneTower(std::move(name), image, 1);
}

Network BuildAlexNetCaffe(std::string name, int64_t image) {
  return BuildOneTower(std::move(name), image, 2);
}

Network BuildVggS(std::string name, int64_t image) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  x = net.Lrn("norm1", net.ConvRelu("conv1", x, ConvSpec::Square(96, 7, 2)));
  x = net.MaxPool("pool1", x, {3, 3, 0, true});
  x = net.ConvRelu("conv2", x, ConvSpec::Square(256, 5, 1));
  x = net.MaxPool("pool2", x, {2, 2, 0, true});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(512, 3, 1, 1));
  x = net.ConvRelu("conv4", x, ConvSpec::Square(512, 3, 1, 1));
  x = net.ConvRelu("conv5", x, ConvSpec::Square(512, 3, 1, 1));
  x = net.MaxPool("pool5", x, {3, 3, 0, true});
  x = net.Dropout("drop6", net.LinearRelu("fc6", x, 4096));
  x = net.Dropout("drop7", net.LinearRelu("fc7", x, 4096));
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

Network BuildAlexNetPlain(std::string name, int64_t image) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.ConvRelu("conv1", net.image(), ConvSpec::Square(96, 11, 4));
  x = net.MaxPool("pool1", x, {3, 2});
  x = net.ConvRelu("conv2", x, ConvSpec::Square(256, 5, 1, 2));
  x = net.MaxPool("pool2", x, {3, 2});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(384, 3, 1, 1));
  x = net.ConvRelu("conv4", x, ConvSpec::Square(384, 3, 1, 1));
  x = net.ConvRelu("conv5", x, ConvSpec::Square(256, 3, 1, 1));
  x = net.MaxPool("pool5", x, {3, 2});
  x = net.LinearRelu("fc6", x, 4096);
  x = net.LinearRelu("fc7", x, 4096);
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway
