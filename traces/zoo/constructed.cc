#include <fmt/format.h>

#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway::traces {

Network BuildConstructed(std::string name, int64_t image, int repetitions) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.ConvRelu("conv1", net.image(), ConvSpec::Square(64, 3, 1, 1));
  for (int i = 1; i <= repetitions; ++i) {
    x = net.ConvRelu(fmt::format("conv2_{}.1x1", i), x, ConvSpec::Square(64, 1));
    x = net.ConvRelu(fmt::format("conv2_{}.5x5", i), x, ConvSpec::Square(64, 5, 1, 2));
  }
  x = net.MaxPool("pool1", x, {image, image});
  x = net.ConvRelu("conv3", x, ConvSpec::Square(3, 1));
  net.SoftmaxLoss("softmax", net.Linear("fc1", x, 2));
  return net;
}

}  // namespace spillway::traces
