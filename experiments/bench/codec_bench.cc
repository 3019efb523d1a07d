// Measures the zero-value codec, with memcpy for comparison. Rates are bytes of the original data
// per second: of processor time on one core, of real time on more cores. The last argument is the
// percentage of words that are not zero.

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "sim/compression/zero_value.h"

namespace spillway::lab {
namespace {

constexpr size_t kBytes = size_t{128} << 20;  // larger than the caches

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<std::byte[], Free>;

Buffer NewBuffer() {
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(4096, kBytes)));
  std::memset(buffer.get(), 1, kBytes);
  return buffer;
}

// Returns data in which `percent` percent of the words are not zero. The zeros are at random
// places, the worst case for prediction.
Buffer DataOf(int64_t percent) {
  Buffer buffer = NewBuffer();
  std::mt19937_64 random(1);
  auto* const words = reinterpret_cast<uint32_t*>(buffer.get());
  for (size_t i = 0; i < kBytes / 4; ++i) {
    const uint64_t draw = random();
    words[i] =
        static_cast<int64_t>(draw % 100) < percent ? static_cast<uint32_t>(draw >> 32) | 1 : 0;
  }
  return buffer;
}

void SetRate(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

void BM_Memcpy(benchmark::State& state) {
  const Buffer from = DataOf(50);
  const Buffer to = NewBuffer();
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), kBytes);
    benchmark::ClobberMemory();
  }
  SetRate(state);
}
BENCHMARK(BM_Memcpy);

void BM_Compress(benchmark::State& state, CodecPath path, int threads) {
  const Buffer from = DataOf(state.range(0));
  BlockPool pool;
  CompressedData compressed(pool);
  ZeroValueCodec codec({32, threads}, path);
  // The first call fills the pool. Later calls take their blocks from it, as in training.
  codec.Compress({from.get(), kBytes}, compressed);
  for (auto _ : state) codec.Compress({from.get(), kBytes}, compressed);
  SetRate(state);
  state.counters["held"] = static_cast<double>(compressed.held().count()) / kBytes;
}

void BM_Decompress(benchmark::State& state, CodecPath path, int threads) {
  const Buffer from = DataOf(state.range(0));
  const Buffer to = NewBuffer();
  BlockPool pool;
  CompressedData compressed(pool);
  ZeroValueCodec codec({32, threads}, path);
  codec.Compress({from.get(), kBytes}, compressed);
  for (auto _ : state) {
    codec.Decompress(compressed, {to.get(), kBytes});
    benchmark::ClobberMemory();
  }
  SetRate(state);
}

void AddAll(const std::string& name, void (*run)(benchmark::State&, CodecPath, int)) {
  for (const CodecPath path : CodecPaths()) {
    for (const int threads : {1, 2, 4, 8, 16}) {
      if (threads > 1 && path != CodecPaths().back()) continue;
      auto* const benchmark = benchmark::RegisterBenchmark(
          (name + "/" + std::string(Name(path)) + "/threads:" + std::to_string(threads)).c_str(),
          [=](benchmark::State& state) { run(state, path, threads); });
      if (threads > 1) benchmark->UseRealTime();
      for (const int64_t percent : {10, 25, 50, 75, 100}) {
        if (threads == 1 || percent == 50) benchmark->Arg(percent);
      }
    }
  }
}

const bool registered = [] {
  AddAll("BM_Compress", BM_Compress);
  AddAll("BM_Decompress", BM_Decompress);
  return true;
}();

}  // namespace
}  // namespace spillway::lab
