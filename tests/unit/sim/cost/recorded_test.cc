#include "sim/cost/recorded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "experiments/run/device_specification.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Duration kOfMatmul = Duration::Microseconds(300), kOfCopy = Duration::Microseconds(40);

// Returns a product and a copy as recorded on the GPU `gpu`.
Trace Recorded(const std::string& gpu) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1 << 20).Tensor("y", TensorKind::kActivation, 1 << 20);
  builder.Op("mm", Phase::kForward, {"x"}, {"y"}, OpType::kMatmul);
  builder.Op("copy", Phase::kForward, {"y"}, {"y"});
  Trace trace = builder.Build();
  trace.recording = {"PyTorch 2.11.0", gpu,     Duration::Milliseconds(1),
                     Duration(),       Bytes(), Bytes()};
  trace.ops[0].recorded = {kOfMatmul, Duration(), Duration(), Bytes(4096)};
  trace.ops[1].recorded = {kOfCopy, Duration(), Duration(), Bytes()};
  trace.ops[0].slots = {{"op", "mm", 1'000'000'000'000, Bytes(3 << 20)}};
  trace.ops[1].slots = {{"op", "copy", 0, Bytes::GiB(1)}};
  trace.Validate();
  return trace;
}

Device DeviceOf(const std::string& name) {
  return ReadDevice(testing::InSource("sim/devices/" + name + ".toml"));
}

Kernel KernelOf(const CostModel& cost, const Op& op) { return cost.Kernels(op, 0, op.batch)[0]; }

TEST(RecordedCostTest, OnTheSameGpuAsItWas) {
  const Device h200 = DeviceOf("h200");
  const Trace trace = Recorded(h200.gpus.at(0));
  const RecordedCostModel cost(*trace.recording, h200, h200);
  EXPECT_EQ(cost.Kernels(trace.ops[0], 0, trace.ops[0].batch).size(), 1u);
  EXPECT_EQ(KernelOf(cost, trace.ops[0]).time, kOfMatmul);
  EXPECT_EQ(KernelOf(cost, trace.ops[0]).workspace, Bytes(4096));
  EXPECT_EQ(KernelOf(cost, trace.ops[1]).time, kOfCopy);
  EXPECT_EQ(cost.Provenance(), "recorded on " + h200.gpus[0] + ", PyTorch 2.11.0");
}

// A trace that was recorded without a GPU takes the time of the roofline in its arithmetic.
TEST(RecordedCostTest, WithoutAGpuByTheRateOfTheArithmetic) {
  Device device = DeviceOf("h200");
  device.matrix_flops_per_second[Arithmetic::kBf16] = 10 * device.flops_per_second;
  Trace trace = Recorded("");
  for (Op& op : trace.ops) op.recorded = RecordedCost{};
  const auto time = [&] {
    const RecordedCostModel cost(*trace.recording, device, std::nullopt);
    return KernelOf(cost, trace.ops[0]).time.milliseconds();
  };
  const double in_fp32 = time();
  trace.ops[0].slots[0].arithmetic = Arithmetic::kBf16;
  EXPECT_NEAR(in_fp32 / time(), 10, 0.1);
}

// Each op's time is scaled by the ratio of its roofline times on the two GPUs, whether arithmetic
// or memory bounds the op.
TEST(RecordedCostTest, OnAnotherGpuByTheRooflines) {
  const Device h200 = DeviceOf("h200"), a100 = DeviceOf("a100");
  const Trace trace = Recorded(h200.gpus.at(0));
  const RecordedCostModel cost(*trace.recording, a100, h200);
  const RooflineCostModel here(a100), there(h200);
  for (const Op& op : trace.ops) {
    const double ratio =
        KernelOf(here, op).time.milliseconds() / KernelOf(there, op).time.milliseconds();
    EXPECT_GT(ratio, 1.1) << op.name;
    EXPECT_NEAR(KernelOf(cost, op).time.milliseconds(), op.recorded->time.milliseconds() * ratio,
                1e-6)
        << op.name;
    EXPECT_EQ(KernelOf(cost, op).workspace, op.recorded->workspace);
  }
  EXPECT_EQ(cost.Provenance(),
            "recorded on " + h200.gpus[0] + ", scaled by the rooflines of the two");
}

// Time beyond the roofline takes instructions: as long on an H100 as on an H200, which differ in
// memory alone, and 67 / (2 * 19.5) times as long on an A100, half of whose lanes compute in fp32.
TEST(RecordedCostTest, OnAnotherGpuBeyondTheRoofline) {
  const Device h200 = DeviceOf("h200");
  Trace trace = Recorded(h200.gpus.at(0));
  const RooflineCostModel there(h200);
  const Duration excess = Duration::Milliseconds(1);
  for (Op& op : trace.ops) op.recorded->time = KernelOf(there, op).time + excess;
  for (const auto& [name, slower] : {std::pair("h100", 1.0), {"a100", 67 / (2 * 19.5)}}) {
    const Device device = DeviceOf(name);
    const RecordedCostModel cost(*trace.recording, device, h200);
    const RooflineCostModel here(device);
    for (const Op& op : trace.ops) {
      const Duration beyond = KernelOf(cost, op).time - KernelOf(here, op).time;
      EXPECT_NEAR(beyond.milliseconds(), slower, 1e-6) << name << " " << op.name;
    }
  }
}

TEST(RecordedCostTest, OfAnUnknownGpuAsItWas) {
  const Trace trace = Recorded("NVIDIA Nonesuch");
  const RecordedCostModel cost(*trace.recording, DeviceOf("a100"), std::nullopt);
  EXPECT_EQ(KernelOf(cost, trace.ops[0]).time, kOfMatmul);
  EXPECT_THAT(cost.Provenance(), HasSubstr("for which there is no device file"));
}

TEST(RecordedCostTest, WithoutAGpuByTheRoofline) {
  const Device a100 = DeviceOf("a100");
  const Trace trace = Recorded("");
  const RecordedCostModel cost(*trace.recording, a100, std::nullopt);
  const RooflineCostModel roofline(a100);
  for (const Op& op : trace.ops) {
    EXPECT_EQ(KernelOf(cost, op).time, KernelOf(roofline, op).time) << op.name;
  }
  EXPECT_EQ(cost.CopyTime(Direction::kToHost, Bytes::GiB(1)),
            roofline.CopyTime(Direction::kToHost, Bytes::GiB(1)));
}

// A recorded step has only one batch.
TEST(RecordedCostTest, OtherBatchesAndOps) {
  Trace trace = Recorded("NVIDIA Nonesuch");
  const RecordedCostModel cost(*trace.recording, DeviceOf("a100"), std::nullopt);
  EXPECT_THAT(cost.Batches(trace.ops[0], 0), ElementsAre(trace.ops[0].batch));
  EXPECT_EQ(InputErrorOf([&] { cost.Kernels(trace.ops[0], 0, 7); }),
            "no recorded cost of op 'mm' at batch 7");
  trace.ops[0].recorded.reset();
  EXPECT_THAT(InputErrorOf([&] { KernelOf(cost, trace.ops[0]); }), HasSubstr("of op 'mm'"));
}

}  // namespace
}  // namespace spillway::testing
