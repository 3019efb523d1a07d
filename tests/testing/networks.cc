#include "tests/testing/networks.h"

#include <array>
#include <string>

namespace spillway::testing {

Network Chain() {
  Network net("chain", {3, 16, 16});
  LayerNode x = net.image();
  for (int i = 1; i <= 4; ++i) {
    x = net.ConvRelu("conv" + std::to_string(i), x, ConvSpec::Square(8, 3, 1, 1));
    if (i % 2 == 0) x = net.MaxPool("pool" + std::to_string(i), x, {2, 2});
  }
  net.SoftmaxLoss("softmax", net.Linear("fc", x, 10));
  return net;
}

Network ForkJoin() {
  Network net("forkjoin", {3, 16, 16});
  LayerNode x = net.ConvRelu("stem", net.image(), ConvSpec::Square(8, 3, 1, 1));
  for (const char* module : {"a", "b"}) {
    const std::string name(module);
    const LayerNode left = net.ConvRelu(name + ".1x1", x, ConvSpec::Square(4, 1));
    LayerNode middle = net.ConvRelu(name + ".reduce", x, ConvSpec::Square(2, 1));
    middle = net.ConvRelu(name + ".3x3", middle, ConvSpec::Square(6, 3, 1, 1));
    const LayerNode right = net.MaxPool(name + ".pool", x, {3, 1, 1});
    x = net.Concat(name + ".concat", std::array{left, middle, right});
  }
  net.SoftmaxLoss("softmax", net.Linear("fc", net.AvgPool("pool", x, {16, 1}), 10));
  return net;
}

Device NarrowDevice() {
  Device device;
  device.name = "narrow";
  device.alignment = Bytes(512);
  device.host_memory = Bytes::GiB(1);
  device.flops_per_second = 100'000'000'000;
  device.dram = {10'000'000'000};
  device.h2d = device.d2h = {{1'000'000'000}, Duration::Microseconds(2)};
  device.duplex = {1'700'000'000};
  device.launch_overhead = Duration::Microseconds(1);
  device.efficiency = {{"default", 0.5},       {"fwd.implicit_gemm", 0.4},
                       {"fwd.fft", 1.0},       {"bwd_data.algo_1", 0.4},
                       {"bwd_data.fft", 1.0},  {"bwd_filter.algo_1", 0.4},
                       {"bwd_filter.fft", 0.9}};
  return device;
}

}  // namespace spillway::testing
