// Measures the planning of micro-batches: desirable divisions of all kernels of a network's
// convolutions, and for ResNet-50 the segments of one workspace for them. A run plans one network.
// Kernel times are known beforehand, so nothing is measured on a GPU.

#include <benchmark/benchmark.h>

#include <span>
#include <vector>

#include "experiments/run/device_specification.h"
#include "policies/kernels/micro_batch.h"
#include "policies/kernels/workspace_division.h"
#include "sim/cost/roofline.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

class Kernels {
 public:
  // The trace includes the gradient of the image, so each convolution has three kernels.
  Kernels(const char* network, int64_t batch)
      : trace_(LowerNetwork(BuildNetwork(network), {batch, "superneurons", true})),
        cost_(LoadDevice("p100")) {}

  std::vector<Front> Fronts(DivisionFronts& divisions) const {
    return FrontsOf(trace_, cost_, divisions).fronts;
  }

 private:
  const Trace trace_;
  const RooflineCostModel cost_;
};

void Reuse(benchmark::State& state, const Kernels& kernels, MicroBatches batches) {
  DivisionFronts warm(batches);
  kernels.Fronts(warm);  // the cost model computes kernel times at their first use
  for (auto _ : state) {
    DivisionFronts divisions(batches);
    benchmark::DoNotOptimize(kernels.Fronts(divisions));
  }
}

void BM_ReuseResNet50PowerOfTwo(benchmark::State& state) {
  Reuse(state, Kernels("resnet50", 32), MicroBatches::kPowerOfTwo);
}
BENCHMARK(BM_ReuseResNet50PowerOfTwo)->Unit(benchmark::kMillisecond);

void BM_ReuseAlexNet256All(benchmark::State& state) {
  Reuse(state, Kernels("alexnet-caffe", 256), MicroBatches::kAll);
}
BENCHMARK(BM_ReuseAlexNet256All)->Unit(benchmark::kMillisecond);

void Divide(benchmark::State& state, SegmentChoice (*divide)(std::span<const Front>, Bytes)) {
  const Kernels kernels("resnet50", 32);
  DivisionFronts warm(MicroBatches::kPowerOfTwo);
  kernels.Fronts(warm);
  for (auto _ : state) {
    DivisionFronts divisions(MicroBatches::kPowerOfTwo);
    benchmark::DoNotOptimize(divide(kernels.Fronts(divisions), Bytes::MiB(state.range(0))));
  }
}

void BM_DivideResNet50ByIlp(benchmark::State& state) { Divide(state, DivideByIlp); }
BENCHMARK(BM_DivideResNet50ByIlp)->Arg(1272)->Arg(2544)->Arg(5088)->Unit(benchmark::kMillisecond);

void BM_DivideResNet50Exactly(benchmark::State& state) { Divide(state, DivideExactly); }
BENCHMARK(BM_DivideResNet50Exactly)->Arg(1272)->Arg(2544)->Arg(5088)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace spillway::lab
