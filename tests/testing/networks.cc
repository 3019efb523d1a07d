#include "tests/testing/networks.h"

#include <array>
#include <string>

#include "traces/zoo/zoo.h"

namespace spillway::testing {

Network Deep() { return DeepOn(24); }

Network DeepOn(int64_t side) {
  Network net("deep", {4, side, side});
  LayerNode x = net.ConvRelu("conv1", net.image(), ConvSpec::Square(64, 3, 1, 1));
  x = net.ConvRelu("conv2", x, ConvSpec::Square(64, 3, 1, 1));
  net.SoftmaxLoss("loss", net.Linear("fc", net.MaxPool("pool", x, {4, 4}), 10));
  return net;
}

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

Network Residual() {
  Network net("residual", {3, 16, 16});
  const auto conv = [](int64_t channels, int64_t kernel, int64_t stride) {
    ConvSpec spec = ConvSpec::Square(channels, kernel, stride, kernel / 2);
    spec.bias = false;
    return spec;
  };
  LayerNode x = net.ConvNormRelu("stem", net.image(), conv(8, 3, 1));
  LayerNode branch = net.ConvNormRelu("a.conv1", x, conv(4, 1, 1));
  branch = net.ConvNorm("a.conv2", branch, conv(8, 3, 1));
  x = net.Relu("a.relu", net.Add("a.add", branch, x));
  branch = net.ConvNormRelu("b.conv1", x, conv(6, 3, 2));
  branch = net.ConvNorm("b.conv2", branch, conv(12, 3, 1));
  const LayerNode shortcut = net.ConvNorm("b.shortcut", x, conv(12, 1, 2));
  x = net.Relu("b.relu", net.Add("b.add", branch, shortcut));
  net.SoftmaxLoss("softmax", net.Linear("fc", net.AvgPool("pool", x, {8, 1}), 10));
  return net;
}

Network Normalized() {
  Network net("normalized", {3, 16, 16});
  LayerNode x = net.ConvRelu("conv1", net.image(), ConvSpec::Square(8, 3, 1, 1));
  x = net.MaxPool("pool1", net.Lrn("lrn1", x), {3, 2, 1});
  const LayerNode left = net.ConvRelu("left", x, ConvSpec::Square(4, 1));
  const LayerNode right = net.Lrn("right.lrn", net.Conv("right", x, ConvSpec::Square(6, 3, 1, 1)));
  x = net.Concat("concat", std::array{left, right});
  x = net.Relu("relu2", net.Add("add", x, net.Lrn("lrn2", x)));
  x = net.Dropout("drop", net.LinearRelu("fc1", x, 12));
  net.SoftmaxLoss("softmax", net.Linear("fc2", x, 10));
  return net;
}

Network Rectangular() {
  Network net("rectangular", {3, 12, 10});
  const auto conv = [&](const std::string& name, LayerNode x, ConvSpec spec) {
    spec.bias = false;
    return net.ConvNormRelu(name, x, spec);
  };
  const LayerNode x = conv("stem", net.image(), ConvSpec::Square(8, 3, 1, 1));
  const LayerNode a = conv("a.1x7", x, {.channels = 4, .kernel_w = 7, .pad_w = 3});
  const LayerNode b = conv("b.7x1", a, {.channels = 6, .kernel_h = 7, .pad_h = 3});
  LayerNode c = conv("c.1x1", x, ConvSpec::Square(4, 1));
  const LayerNode c1 = conv("c.1x3", c, {.channels = 3, .kernel_w = 3, .pad_w = 1});
  const LayerNode c2 = conv("c.3x1", c, {.channels = 5, .kernel_h = 3, .pad_h = 1});
  const LayerNode d = conv("d.proj", net.AvgPool("d.pool", x, {3, 1, 1}), ConvSpec::Square(2, 1));
  c = net.Concat("concat", std::array{b, c1, c2, d});
  c = net.MaxPool("pool", conv("last", c, ConvSpec::Square(6, 1)), {3, 2});
  net.SoftmaxLoss("softmax", net.Linear("fc", net.Dropout("drop", c, 0.2), 10));
  return net;
}

Network Dense() {
  Network net("dense", {3, 8, 8});
  const auto conv = [](int64_t channels, int64_t kernel) {
    ConvSpec spec = ConvSpec::Square(channels, kernel, 1, kernel / 2);
    spec.bias = false;
    return spec;
  };
  LayerNode x = net.Conv("stem", net.image(), conv(6, 3));
  for (const std::string block : {"a", "b"}) {
    for (const char* layer : {"1", "2"}) {
      const std::string name = block + layer;
      LayerNode y = net.Relu(name + ".relu1", net.BatchNorm(name + ".norm1", x));
      y = net.Conv(name + ".conv1", y, conv(8, 1));
      y = net.Activation(OpType::kGelu, name + ".gelu", net.BatchNorm(name + ".norm2", y));
      x = net.Concat(name + ".concat", std::array{x, net.Conv(name + ".conv2", y, conv(4, 3))});
    }
    x = net.Relu(block + ".relu", net.BatchNorm(block + ".norm", x));
    x = net.AvgPool(block + ".pool", net.Conv(block + ".conv", x, conv(7, 1)), {2, 2});
  }
  net.SoftmaxLoss("softmax", net.Linear("fc", x, 10));
  return net;
}

Network Gpt() {
  return BuildGpt("gpt", 7, {.width = 8, .layers = 2, .heads = 2, .vocabulary = 11, .positions = 9},
                  AttentionKind::kMath);
}

Network Llama() { return BuildLlama("llama", 5, {8, 2, 4, 2, 12, 9}, AttentionKind::kFused); }

Network Vit() {
  return BuildVit("vit", 8, {.width = 6, .layers = 1, .heads = 3, .patch = 4},
                  AttentionKind::kFused);
}

std::vector<std::string> SuperNeuronsCombinations() {
  std::vector<std::string> policies;
  for (const char* offload : {"none", "conv", "checkpoints"}) {
    for (const char* cache : {"lru", "belady", "fifo", "none"}) {
      for (const char* recompute : {"none", "speed", "memory", "cost-aware"}) {
        for (const char* workspace : {"none", "static", "dynamic"}) {
          policies.push_back(std::string("superneurons:offload=") + offload + ",cache=" + cache +
                             ",recompute=" + recompute + ",workspace=" + workspace);
        }
      }
    }
  }
  return policies;
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
