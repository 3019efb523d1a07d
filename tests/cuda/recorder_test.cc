// Tests the recorder on a real GPU.

#include "backend/cuda/recorder.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/kernels_fixture.h"

namespace spillway::testing {
namespace {

// Returns a network of one convolution and a relu in place.
Trace TinyTrace() {
  Trace trace;
  trace.name = "tiny:4";
  trace.network = "tiny";
  trace.batch = 4;
  trace.layers = {{"image", OpType::kInput}, {"conv", OpType::kConv2d}, {"relu", OpType::kRelu}};
  const Bytes activation(4 * 8 * 16 * 16 * 4);
  trace.tensors = {{"x", TensorKind::kInput, {4, 8, 16, 16}, activation, std::nullopt},
                   {"w", TensorKind::kParameter, {8, 8, 3, 3}, Bytes(8 * 8 * 9 * 4), std::nullopt},
                   {"y", TensorKind::kActivation, {4, 8, 16, 16}, activation, std::nullopt},
                   {"z", TensorKind::kActivation, {4, 8, 16, 16}, activation, TensorId{2}}};
  Op conv = MakeOp(OpType::kConv2d, Phase::kForward, 4,
                   {{"in_channels", 8},
                    {"in_height", 16},
                    {"in_width", 16},
                    {"out_channels", 8},
                    {"out_height", 16},
                    {"out_width", 16},
                    {"kernel_h", 3},
                    {"kernel_w", 3},
                    {"stride_h", 1},
                    {"stride_w", 1},
                    {"pad_h", 1},
                    {"pad_w", 1},
                    {"groups", 1}});
  conv.layer = LayerId{1};
  conv.slots[0].signature = "conv";
  conv.inputs = {TensorId{0}, TensorId{1}};
  conv.outputs = {TensorId{2}};
  Op relu = MakeOp(OpType::kRelu, Phase::kForward, 4, {{"elements", 8 * 16 * 16}});
  relu.layer = LayerId{2};
  relu.slots[0].signature = "relu";
  relu.inputs = {TensorId{2}};
  relu.outputs = {TensorId{3}};
  trace.ops = {conv, relu};
  trace.Validate();
  return trace;
}

using RecorderTest = KernelsTest;

TEST_F(RecorderTest, FillsATable) {
  RecordOptions options;
  options.clock_warmup = Duration::Milliseconds(50);
  options.min_time = Duration::Milliseconds(1);
  options.only = {{"conv", 1}, {"conv", 2}, {"conv", 4}, {"relu", 4}};
  size_t reports = 0;
  options.progress = [&](const RecordProgress& progress) {
    if (progress.note.empty()) ++reports;
    if (!progress.note.empty()) std::cout << "[   NOTE   ] " << progress.note << "\n";
  };
  const CostTable table = Record(TinyTrace(), options);
  EXPECT_EQ(table.workload, "tiny:4");
  EXPECT_FALSE(table.provenance.gpu.empty());
  EXPECT_EQ(table.provenance.math, "fp32");
  std::vector<std::pair<std::string, int64_t>> keys;
  for (const CostEntry& entry : table.entries) {
    keys.emplace_back(entry.signature, entry.batch);
    ASSERT_FALSE(entry.kernels.empty());
    for (size_t i = 0; i < entry.kernels.size(); ++i) {
      const RecordedKernel& kernel = entry.kernels[i];
      std::cout << "[   NOTE   ] " << entry.signature << " batch " << entry.batch << " "
                << kernel.kernel.algorithm << " " << FormatDuration(kernel.kernel.time) << " "
                << FormatBytes(kernel.kernel.workspace) << " repeats " << kernel.repeats
                << " spread " << kernel.spread << "\n";
      EXPECT_GT(kernel.kernel.time, Duration());
      EXPECT_GE(kernel.repeats, 10);
      EXPECT_GE(kernel.spread, 0);
      if (i > 0) {
        EXPECT_LE(entry.kernels[i - 1].kernel.time, kernel.kernel.time);
      }
    }
  }
  EXPECT_EQ(keys, (std::vector<std::pair<std::string, int64_t>>{
                      {"conv", 1}, {"conv", 2}, {"conv", 4}, {"relu", 4}}));
  EXPECT_EQ(reports, keys.size());
}

}  // namespace
}  // namespace spillway::testing
