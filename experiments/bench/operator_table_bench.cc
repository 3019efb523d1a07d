// Measures the estimate of a step's times from a table of operators. An item is one op of the step.

#include <benchmark/benchmark.h>

#include <fmt/format.h>

#include "sim/cost/operator_table.h"

namespace spillway::lab {
namespace {

// Returns a trace of products of `count` sizes, `repeats` times each.
Trace Products(int64_t count, int repeats, int64_t first_rows) {
  Trace trace;
  trace.recording = {"PyTorch", "GPU", Duration(), Duration(), Bytes(), Bytes()};
  for (int i = 0; i < repeats; ++i) {
    for (int64_t rows = first_rows; rows < first_rows + count; ++rows) {
      Op op;
      op.type = OpType::kMatmul;
      op.slots = {
          {"op", fmt::format("aten::mm {0}x64 64x64", rows), 8192 * rows, Bytes(256 * rows)}};
      op.attributes = {{"batches", 1},      {"rows", static_cast<double>(rows)},
                       {"columns", 64},     {"depth", 64},
                       {"transposed_a", 0}, {"transposed_b", 1},
                       {"alignment", 16}};
      op.recorded = RecordedCost{};
      trace.ops.push_back(std::move(op));
    }
  }
  return trace;
}

// 1,200 ops of 100 sizes, by a table of so many sizes of this operator.
void BM_TimeStepByTable(benchmark::State& state) {
  Device device;
  device.flops_per_second = 1'000'000'000'000;
  device.dram = Bandwidth{1000000000000};
  Trace measured = Products(state.range(0), 1, 1000);
  for (Op& op : measured.ops) op.recorded->time = Duration::Microseconds(5);
  const Trace step = Products(100, 12, 500);
  for (auto _ : state) {
    const OperatorTable table(measured, device);
    benchmark::DoNotOptimize(table.Timed(step));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * step.ops.size()));
}
BENCHMARK(BM_TimeStepByTable)->Arg(100)->Arg(1000);

}  // namespace
}  // namespace spillway::lab
