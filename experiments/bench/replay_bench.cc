// Measures the replay of allocation logs. An item is one event, an allocation or a free.

#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "experiments/tools/replay/replay.h"
#include "sim/alloc/make_allocator.h"

namespace spillway::lab {
namespace {

// A log of `events` events with about 1,000 live blocks. Each walk draws the events anew, so that
// no list of events is held.
class DrawnLog final : public MemoryLog {
 public:
  explicit DrawnLog(uint64_t events) : events_(events) {}

  std::string_view Format() const override { return "drawn"; }
  const MemoryLogStart& start() const override { return start_; }
  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    constexpr uint32_t kLive = 1000;
    std::mt19937 random(1);
    std::vector<MemoryEvent> live;
    uint32_t free = 0;  // number of the block that was freed last
    for (uint64_t i = 0; i < events_; ++i) {
      MemoryEvent event;
      const bool frees = i >= kLive && i % 2 == 0;
      if (frees) {
        const size_t victim = random() % live.size();
        event = live[victim];
        event.kind = MemoryEvent::Kind::kFree;
        live[victim] = live.back();
        live.pop_back();
        free = event.block;
      } else {
        event.block = i < kLive ? static_cast<uint32_t>(i) : free;
        event.size = Bytes(512 * static_cast<int64_t>(1 + random() % 20'000));
        live.push_back(event);
      }
      event.index = i;
      event.time = static_cast<int64_t>(i);
      if (!visit(event)) return;
    }
  }

 private:
  const uint64_t events_;
  const MemoryLogStart start_;
};

void BM_ReplayLog(benchmark::State& state, const char* name) {
  const DrawnLog log(static_cast<uint64_t>(state.range(0)));
  for (auto _ : state) {
    const auto allocator = MakeAllocator(name, Bytes::GiB(1 << 20), Bytes(512));
    benchmark::DoNotOptimize(ReplayLog(log, {{name, allocator.get(), false}}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(BM_ReplayLog, best_fit, "best-fit")
    ->Arg(10'000'000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ReplayLog, pytorch, "pytorch")->Arg(10'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace spillway::lab
