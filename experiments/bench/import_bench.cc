// Measures reading the output of PyTorch's profiler. Bytes are bytes of the JSON text, and an item
// is one event.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string>

#include "traces/base/text_stream.h"
#include "traces/import/kineto.h"

namespace spillway::lab {
namespace {

// Returns a profile of `operators` operators, each with a launch, a kernel, an allocation and
// `frames` stack frames.
std::string KinetoText(int64_t operators, int64_t frames) {
  std::string text = R"({"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": [)";
  for (int64_t i = 1; i <= operators; ++i) {
    text += fmt::format(
        R"(
  {{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": {0}.125, "dur": 8.5, "args": {{"External id": {0}, "Record function id": {0}, "Ev Idx": {0}, "Input Dims": [[2048, 768], [768, 768]]}}}},
  {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": {0}.325, "dur": 5.5, "args": {{"External id": {0}, "cbid": 211, "correlation": {0}}}}},
  {{"ph": "X", "cat": "kernel", "name": "sgemm_largek_lds64", "pid": 0, "tid": 7, "ts": {0}.625, "dur": 0.5, "args": {{"External id": {0}, "device": 0, "stream": 7, "correlation": {0}}}}},
  {{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": {0}.225, "args": {{"Total Reserved": 8192, "Total Allocated": 4096, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": {0}, "Ev Idx": {0}}}}},)",
        i);
    for (int64_t frame = 0; frame < frames; ++frame) {
      text += fmt::format(
          R"(
  {{"ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1773): _call_impl", "pid": 1, "tid": 1, "ts": {}.1, "dur": 12.5, "args": {{"Python id": {}, "Python parent id": 0}}}},)",
          i, frame);
    }
  }
  text.back() = ']';
  return text += "}";
}

void BM_ReadKineto(benchmark::State& state) {
  const int64_t operators = 20000, frames = state.range(0);
  const std::string text = KinetoText(operators, frames);
  for (auto _ : state) {
    TextStream stream(text, "bench");
    benchmark::DoNotOptimize(ReadKineto(stream));
  }
  const auto iterations = static_cast<int64_t>(state.iterations());
  state.SetBytesProcessed(iterations * static_cast<int64_t>(text.size()));
  state.SetItemsProcessed(iterations * operators * (4 + frames));
}
BENCHMARK(BM_ReadKineto)->Arg(0)->Arg(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace spillway::lab
