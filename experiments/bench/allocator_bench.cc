// Measures allocate/free pairs per second at a steady number of live blocks. An item is one pair.

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "sim/alloc/make_allocator.h"

namespace spillway::lab {
namespace {

// Frees a random live block and allocates a block of a random size, like a network with tensors of
// mixed sizes.
void BM_AllocateFree(benchmark::State& state, const char* name) {
  const auto live_blocks = static_cast<size_t>(state.range(0));
  const auto allocator = MakeAllocator(name, Bytes::GiB(1 << 20), Bytes(512));
  std::mt19937 random(1);
  // Sizes and victims are drawn beforehand, so that only the allocator is measured.
  constexpr size_t kDraws = 1 << 16;
  std::vector<Bytes> sizes;
  std::vector<size_t> victims;
  for (size_t i = 0; i < kDraws; ++i) {
    const auto exponent = 9 + random() % 18;  // 512 B to 128 MiB
    sizes.emplace_back((int64_t{1} << exponent) +
                       static_cast<int64_t>(random() % (1u << exponent)));
    victims.push_back(random() % live_blocks);
  }
  std::vector<Block> live;
  for (size_t i = 0; i < live_blocks; ++i) {
    live.push_back(*allocator->Allocate(sizes[i % kDraws], Hint::kLow));
  }
  size_t draw = 0;
  for (auto _ : state) {
    Block& victim = live[victims[draw]];
    allocator->Free(victim);
    victim = *allocator->Allocate(sizes[draw], Hint::kLow);
    draw = (draw + 1) % kDraws;
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}
BENCHMARK_CAPTURE(BM_AllocateFree, best_fit, "best-fit")
    ->Arg(100)
    ->Arg(1000)
    ->Arg(10000)
    ->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, first_fit, "first-fit")->Arg(1000)->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, cnmem, "cnmem:initial=1TiB")->Arg(1000)->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, pytorch, "pytorch")->Arg(1000)->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, pytorch_expandable, "pytorch:expandable_segments=true")
    ->Arg(1000)
    ->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, high_end, "high-end")->Arg(1000)->Arg(100000);
BENCHMARK_CAPTURE(BM_AllocateFree, stitched, "stitched")->Arg(1000);
BENCHMARK_CAPTURE(BM_AllocateFree, native, "native")->Arg(1000);

}  // namespace
}  // namespace spillway::lab
