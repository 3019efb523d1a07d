#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway {

Network BuildOverFeat(std::string name, int64_t image) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  x = net.ConvRelu("conv1", x, ConvSpec::Square(96, 11, 4));
  x = net.MaxPool("pool1", x, {2, 2});
  x = net.ConvRelu("conv2", x, ConvSpec::Square(256, 5));
  x = net.MaxPool("pool2", x, {2, 2});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(512, 3, 1, 1));
  x = net.ConvRelu("conv4", x, ConvSpec::Square(1024, 3, 1, 1));
  x = net.ConvRelu("conv5", x, ConvSpec::Square(1024, 3, 1, 1));
  x = net.MaxPool("pool5", x, {2, 2});
  x = net.LinearRelu("fc6", x, 3072);
  x = net.LinearRelu("fc7", x, 4096);
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway
