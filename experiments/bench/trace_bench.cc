// Measures building, lowering and reading traces. Bytes are bytes of the JSON text; an item is one
// op.

#include <benchmark/benchmark.h>

#include "traces/format.h"
#include "traces/liveness.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

void BM_ParseTrace(benchmark::State& state, const char* network) {
  const std::string text = FormatTrace(LowerNetwork(BuildNetwork(network), {32, "torch", true}));
  for (auto _ : state) benchmark::DoNotOptimize(ParseTrace(text, "bench"));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK_CAPTURE(BM_ParseTrace, vgg16, "vgg16");
BENCHMARK_CAPTURE(BM_ParseTrace, vgg416, "vgg416");

// Parses a trace of many megabytes.
void BM_ParseLongTrace(benchmark::State& state) {
  Network net("chain", {16, 16, 16});
  LayerNode x = net.image();
  for (int i = 0; i < 20000; ++i) {
    x = net.ConvRelu("conv" + std::to_string(i), x, ConvSpec::Square(16, 3, 1, 1));
  }
  net.SoftmaxLoss("softmax", x);
  const std::string text = FormatTrace(LowerNetwork(net, {8, "torch", true}));
  for (auto _ : state) benchmark::DoNotOptimize(ParseTrace(text, "bench"));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(BM_ParseLongTrace)->Unit(benchmark::kMillisecond);

void BM_LowerVgg416(benchmark::State& state) {
  const Network network = BuildNetwork("vgg416");
  size_t ops = 0;
  for (auto _ : state) ops = LowerNetwork(network, {32, "torch", true}).ops.size();
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ops));
}
BENCHMARK(BM_LowerVgg416);

// Prepares the network, from the name to the liveness. An item is one op.
void Prepare(benchmark::State& state, const std::string& name) {
  size_t ops = 0;
  for (auto _ : state) {
    const Trace trace = LowerNetwork(BuildNetwork(name), {1, "torch", true});
    benchmark::DoNotOptimize(Liveness(trace));
    ops = trace.ops.size();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ops));
}

// Prepares residual networks of about the given number of units, which SuperNeurons uses to go
// deeper. The rate must not fall as the depth grows.
void BM_PrepareResNet(benchmark::State& state) {
  Prepare(state, "resnet(6,32," + std::to_string(state.range(0) / 3 - 44) + ",6)");
}
BENCHMARK(BM_PrepareResNet)->Arg(250)->Arg(2500)->Arg(25000)->Unit(benchmark::kMillisecond);

void BM_PrepareDenseNet(benchmark::State& state) {
  Prepare(state, "densenet(" + std::to_string(state.range(0)) + ",k=4)@32");
}
BENCHMARK(BM_PrepareDenseNet)->Arg(100)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

void BM_Liveness(benchmark::State& state) {
  const Trace trace = LowerNetwork(BuildNetwork("vgg416"), {32, "torch", true});
  for (auto _ : state) benchmark::DoNotOptimize(Liveness(trace));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * trace.ops.size()));
}
BENCHMARK(BM_Liveness);

}  // namespace
}  // namespace spillway::lab
