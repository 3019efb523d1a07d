#include <fmt/format.h>

#include <array>
#include <utility>

#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway::traces {

Network BuildVgg(std::string name, int64_t image, const std::vector<int>& convs) {
  constexpr std::array<int64_t, 5> kChannels{64, 128, 256, 512, 512};
  SPILLWAY_CHECK(convs.size() == kChannels.size());
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  for (size_t group = 0; group < convs.size(); ++group) {
    for (int i = 1; i <= convs[group]; ++i) {
      x = net.ConvRelu(fmt::format("conv{}_{}", group + 1, i), x,
                       ConvSpec::Square(kChannels[group], 3, 1, 1));
    }
    x = net.MaxPool(fmt::format("pool{}", group + 1), x, {2, 2});
  }
  x = net.LinearRelu("fc6", x, 4096);
  x = net.LinearRelu("fc7", x, 4096);
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

}  // namespace spillway::traces
