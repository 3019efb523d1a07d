// Measures the discrete-event engine and the hazard map alone. An item is one command in the engine
// and one access in the map.

#include <benchmark/benchmark.h>

#include <random>

#include "experiments/run/device_specification.h"
#include "sim/engine/schedule.h"
#include "sim/runtime/hazard_map.h"

namespace spillway::lab {
namespace {

// Simulates kernels with a copy in each direction. Every kernel waits for the copies of the
// previous kernel.
void BM_Schedule(benchmark::State& state) {
  const Device device = LoadDevice("h200");
  const Links links(device);
  Program program;
  const auto add = [&](Lane lane, Duration nominal, Bytes traffic, std::vector<LaneEvent> waits) {
    auto& commands = program.lanes[Index(lane)];
    commands.push_back({Duration(), nominal, traffic, static_cast<uint32_t>(program.waits.size()),
                        static_cast<uint32_t>(waits.size())});
    program.waits.insert(program.waits.end(), waits.begin(), waits.end());
    return LaneEvent{lane, static_cast<uint32_t>(commands.size())};
  };
  std::vector<LaneEvent> previous;
  for (int64_t i = 0; i < state.range(0); ++i) {
    const LaneEvent kernel =
        add(Lane::kCompute, Duration::Microseconds(90 + i % 20), Bytes::MiB(200), previous);
    previous = {add(Lane::kToHost, Duration::Microseconds(80), Bytes::MiB(4), {kernel}),
                add(Lane::kToDevice, Duration::Microseconds(70), Bytes::MiB(4), {})};
  }
  for (auto _ : state) benchmark::DoNotOptimize(RunSchedule(program, links));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * 3 * state.range(0));
}
BENCHMARK(BM_Schedule)->Arg(1000)->Arg(100000);

void BM_HazardMap(benchmark::State& state) {
  HazardMap map;
  std::mt19937 random(1);
  std::vector<Block> blocks;
  for (int64_t i = 0; i < state.range(0); ++i) blocks.push_back({Bytes(i * 512), Bytes(512)});
  uint32_t sequence = 0;
  for (auto _ : state) {
    const Block& block = blocks[random() % blocks.size()];
    WaitSet touched = map.Take(block);
    touched.Add({Stream::kCompute, ++sequence});
    map.Leave(block, touched);
    benchmark::DoNotOptimize(touched);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}
BENCHMARK(BM_HazardMap)->Arg(100)->Arg(10000);

}  // namespace
}  // namespace spillway::lab
