// Measures offline placement: the worth of each inference of the exact search, plans of runs that
// keep memory full, and large problems.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/prepare.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/cost/roofline.h"
#include "sim/packing/exact.h"
#include "sim/packing/packing.h"
#include "tests/testing/tight.h"

namespace spillway::lab {
namespace {

using packing::ExactParams;
using testing::Cut;
using testing::Tight;

// Searches problems of every cut, in eight sizes with two seeds each. The counters are the number
// of problems packed to the bound, full and with holes, and the total number of steps.
void BM_SearchExactly(benchmark::State& state, const ExactParams& params) {
  const int64_t limit = state.range(0) * 1'000'000;  // steps for each problem
  constexpr std::array kCuts{Cut::kGuillotine, Cut::kPinwheel, Cut::kCoarse, Cut::kBrick,
                             Cut::kHoles};
  constexpr std::array<std::array<int, 2>, 8> kSizes{
      {{100, 30}, {150, 40}, {200, 60}, {250, 100}, {300, 50}, {350, 120}, {400, 80}, {450, 150}}};
  int64_t full = 0, holes = 0, all = 0;
  for (auto _ : state) {
    for (const Cut cut : kCuts) {
      for (const auto [blocks, overlap] : kSizes) {
        for (const uint32_t seed : {1, 2}) {
          const packing::Problem problem = Tight(cut, blocks, overlap, seed);
          int64_t steps = limit;
          const auto found = SearchExactly(problem, testing::kTightHeight + 1, steps, params);
          (cut == Cut::kHoles ? holes : full) += packing::IsPacking(problem, found) ? 1 : 0;
          all += limit - steps;
        }
      }
    }
  }
  state.counters["full_of_64"] = static_cast<double>(full);
  state.counters["holes_of_16"] = static_cast<double>(holes);
  state.counters["steps"] = static_cast<double>(all);
}
#define SPILLWAY_ABLATION(name, ...)                                  \
  BENCHMARK_CAPTURE(BM_SearchExactly, name, ExactParams{__VA_ARGS__}) \
      ->Arg(200)                                                      \
      ->Arg(1000)                                                     \
      ->Iterations(1)                                                 \
      ->Unit(benchmark::kSecond)
SPILLWAY_ABLATION(all);
SPILLWAY_ABLATION(without_fewest, .fewest = false);
SPILLWAY_ABLATION(without_even, .even = false);
SPILLWAY_ABLATION(without_right, .right = false);
SPILLWAY_ABLATION(without_repair, .repair = false);

// Packs one such problem within its bound, as `planned` does if there is no more memory than the
// bound.
void BM_PackTight(benchmark::State& state, Cut cut) {
  const packing::Problem problem =
      Tight(cut, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 1);
  int64_t steps = 0;
  bool found = false;
  for (auto _ : state) {
    steps = 1'000'000'000;
    const auto packed = SearchExactly(problem, testing::kTightHeight + 1, steps);
    found = packing::IsPacking(problem, packed);
  }
  state.counters["fits"] = found ? 1 : 0;
}
#define SPILLWAY_TIGHT(cut)                           \
  BENCHMARK_CAPTURE(BM_PackTight, cut, Cut::cut)      \
      ->ArgsProduct({{100, 200, 300, 400}, {30, 80}}) \
      ->Unit(benchmark::kMillisecond)
SPILLWAY_TIGHT(kGuillotine);
SPILLWAY_TIGHT(kPinwheel);
SPILLWAY_TIGHT(kCoarse);
SPILLWAY_TIGHT(kBrick);

// Measures the heights of plans, relative to their bounds, of runs that keep memory full. The
// memory lies 30 % of the way from the least memory to the memory of the run in core. `thorough`
// takes five minutes on one core.
void BM_PackZoo(benchmark::State& state, const char* effort) {
  constexpr std::array<std::array<const char*, 2>, 8> kRuns{{{"inception-v4:32", "superneurons"},
                                                             {"inception-v4-nobn:32", "vdnnpp"},
                                                             {"densenet121:32", "vdnnpp"},
                                                             {"densenet161:32", "vdnnpp"},
                                                             {"densenet201:32", "vdnnpp"},
                                                             {"resnet101:32", "superneurons"},
                                                             {"resnet101:32", "vdnnpp"},
                                                             {"resnet152:32", "vdnnpp"}}};
  const Device device = LoadDevice("gtx_1080ti");
  const RooflineCostModel cost(device);
  double sum = 0, worst = 0;
  for (auto _ : state) {
    for (const auto& [workload, policy] : kRuns) {
      const Trace trace = LoadTrace({workload, "torch", true});
      const AllocatorChoice planned(std::string("planned:effort=") + effort);
      Draft run{Borrow(trace),       device, Borrow(cost), Bytes::Unlimited(),
                planned.Undecided(), policy};
      run.memory = MemoryBudget("30%").In(run);
      const AllocationPlan plan = PlanFor(run, *planned.planned());
      const double ratio =
          static_cast<double>(plan.height.count()) / static_cast<double>(plan.bound.count());
      sum += ratio;
      worst = std::max(worst, ratio);
    }
  }
  state.counters["mean"] = sum / kRuns.size();
  state.counters["worst"] = worst;
}
BENCHMARK_CAPTURE(BM_PackZoo, quick, "quick")->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(BM_PackZoo, normal, "normal")->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(BM_PackZoo, thorough, "thorough")->Iterations(1)->Unit(benchmark::kSecond);

// Packs blocks in the order of a compiler: most live for a short time, a few for long.
void BM_PackMany(benchmark::State& state) {
  std::mt19937 random(1);
  const auto count = static_cast<int64_t>(state.range(0));
  std::vector<LiveInterval> intervals;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t life = 1 + static_cast<int64_t>(random() % (random() % 100 == 0 ? 10'000 : 60));
    const int64_t size = int64_t{512} << random() % 12;
    intervals.push_back({i, i + life, Bytes(size + static_cast<int64_t>(random() % size))});
  }
  PackingOptions options;
  options.steps = 0;  // only the heuristics run
  Packing packed;
  for (auto _ : state) packed = Pack(intervals, options);
  state.counters["ratio"] =
      static_cast<double>(packed.height.count()) / static_cast<double>(packed.bound.count());
}
BENCHMARK(BM_PackMany)
    ->Arg(5'000)
    ->Arg(20'000)
    ->Arg(60'000)
    ->Arg(500'000)
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace spillway::lab
