// Measures simulated ops per second of the runtime, a policy and the engine, with all logs on. An
// item is one op of the trace in one simulated iteration.

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

#include "experiments/run/device_specification.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "tests/testing/runs.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

// The inputs of a run, created once.
struct Scenario {
  explicit Scenario(Trace lowered)
      : trace(std::move(lowered)), device(LoadDevice("titan_x_maxwell")), cost(device) {
    RegisterBuiltinPolicies(registry);
  }

  Report Run(const std::string& policy, Bytes memory) const {
    return testing::Simulate({Borrow(trace), device, Borrow(cost), memory}, *registry.Make(policy))
        .report;
  }

  Trace trace;
  Device device;
  RooflineCostModel cost;
  PolicyRegistry registry;
};

Trace Lower(const char* network, int64_t batch) {
  return LowerNetwork(BuildNetwork(network), {batch, "torch", true});
}

// Returns the value of a line of /proc/self/status in bytes, or 0 if there is no such line.
int64_t ProcessMemory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// Returns by how many bytes the resident memory of the process rises above its present size while
// `run` executes.
template <typename Run>
int64_t PeakRise(const Run& run) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const int64_t before = ProcessMemory("VmRSS:");
  run();
  return ProcessMemory("VmHWM:") - before;
}

void Measure(benchmark::State& state, const Scenario& scenario, const std::string& policy) {
  const int64_t peak = PeakRise([&] { scenario.Run(policy, Bytes::GiB(64)); });
  int64_t iterations = 0;
  for (auto _ : state) {
    const Report report = scenario.Run(policy, Bytes::GiB(64));
    iterations += report.iterations;
    benchmark::DoNotOptimize(report.metrics.iteration);
  }
  const auto ops = static_cast<int64_t>(scenario.trace.ops.size());
  state.SetItemsProcessed(iterations * ops);
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["bytes_per_op"] = static_cast<double>(peak) / static_cast<double>(ops);
  state.counters["s_per_iteration"] = benchmark::Counter(
      static_cast<double>(iterations), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_SimulateVgg416VdnnAll(benchmark::State& state) {
  Measure(state, Scenario(Lower("vgg416", 32)), "vdnn-all");
}
BENCHMARK(BM_SimulateVgg416VdnnAll);

void BM_SimulateVgg16VdnnAll(benchmark::State& state) {
  Measure(state, Scenario(Lower("vgg16", 64)), "vdnn-all");
}
BENCHMARK(BM_SimulateVgg16VdnnAll);

void BM_SimulateVgg16Liveness(benchmark::State& state) {
  Measure(state, Scenario(Lower("vgg16", 64)), "liveness");
}
BENCHMARK(BM_SimulateVgg16Liveness);

// Returns a chain of 3x3 convolutions with about the given number of ops.
Trace ChainOf(int64_t ops) {
  Network net("chain", {16, 16, 16});
  LayerNode x = net.image();
  for (int64_t i = 0; i * 5 < ops; ++i) {
    x = net.ConvRelu("conv" + std::to_string(i), x, ConvSpec::Square(16, 3, 1, 1));
  }
  net.SoftmaxLoss("softmax", x);
  return LowerNetwork(net, {8, "torch", true});
}

// Simulates chains, to show how the time per op grows.
void BM_SimulateChain(benchmark::State& state) {
  Measure(state, Scenario(ChainOf(state.range(0))), "vdnn-all");
}
BENCHMARK(BM_SimulateChain)
    ->RangeMultiplier(10)
    ->Range(1000, 100000)
    ->Unit(benchmark::kMillisecond);

// Simulates a ResNet of 2498 units, which has 9168 layers with its forks (SuperNeurons, Table 4 and
// section 4.2).
void BM_SimulateResNet2500(benchmark::State& state, const char* policy) {
  Measure(state, Scenario(Lower("resnet(6,32,788,6)", 1)), policy);
}
BENCHMARK_CAPTURE(BM_SimulateResNet2500, liveness, "liveness:algo=memory")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_SimulateResNet2500, vdnn_dyn, "vdnn-dyn")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_SimulateResNet2500, vdnnpp, "vdnnpp")->Unit(benchmark::kMillisecond);

// Measures the trial runs that a policy makes of a policy that drops and recomputes tensors. An
// item is one trial.
void BM_TrialOfResNet50(benchmark::State& state, const char* policy_name) {
  class Trying final : public Policy {
   public:
    Trying(benchmark::State& state, const Scenario& scenario, const char* policy)
        : state_(state), scenario_(scenario), policy_(policy) {}
    Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                        const std::string&) override {
      for (auto _ : state_) {
        const auto tried = scenario_.registry.Make(policy_);
        benchmark::DoNotOptimize(trial(*tried, device.memory, {1}).metrics.iteration);
      }
      return {device.memory};
    }

   private:
    benchmark::State& state_;
    const Scenario& scenario_;
    const char* const policy_;
  };
  const Scenario scenario(Lower("resnet50", 64));
  Trying policy(state, scenario, policy_name);
  testing::Simulate({Borrow(scenario.trace), scenario.device, Borrow(scenario.cost), Bytes::GiB(3)},
                    policy);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(BM_TrialOfResNet50, liveness, "liveness")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_TrialOfResNet50, mxnet, "mxnet")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_TrialOfResNet50, superneurons, "superneurons")->Unit(benchmark::kMillisecond);

// Plans training steps of equal layers with about the given number of ops, in a third of the memory
// that they take in core. The search runs on all cores.
void BM_PlanEqualLayers(benchmark::State& state) {
  const Scenario scenario(ChainOf(state.range(0)));
  const Bytes in_core = scenario.Run("liveness", Bytes::GiB(64)).metrics.peak_reserved;
  for (auto _ : state) {
    const Report report = scenario.Run("joint", Bytes(in_core.count() / 3));
    benchmark::DoNotOptimize(report.metrics.iteration);
  }
  state.counters["ops"] = static_cast<double>(scenario.trace.ops.size());
}
BENCHMARK(BM_PlanEqualLayers)
    ->Arg(500)
    ->Arg(2000)
    ->Iterations(1)
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace spillway::lab
