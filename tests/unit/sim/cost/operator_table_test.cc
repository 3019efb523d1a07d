#include "sim/cost/operator_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/recorded.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

// A product of two matrices of `rows` x 1024 and 1024 x 1024 numbers, in bf16.
struct Product {
  double rows = 0;
  double slower = 0;  // measured time over that of the roofline
  bool transposed = false;
  Bytes workspace = {};
};

class OperatorTableTest : public ::testing::Test {
 protected:
  static Op OpOf(const Product& product) {
    Op op;
    op.name = "mm";
    op.type = OpType::kMatmul;
    const auto rows = static_cast<int64_t>(product.rows);
    op.slots = {{"op", "aten::mm bfloat16", 2 * rows * 1024 * 1024,
                 Bytes(2 * (2 * rows * 1024 + 1024 * 1024)), Arithmetic::kBf16}};
    op.attributes = {{"rows", product.rows}, {"transposed_a", product.transposed ? 1.0 : 0.0}};
    op.recorded = RecordedCost{};
    return op;
  }

  static Trace TraceOf(std::vector<Op> ops, const std::string& gpu) {
    testing::TraceBuilder builder;
    builder.Tensor("x", TensorKind::kInput, 1).Tensor("y", TensorKind::kActivation, 1);
    builder.Op("first", Phase::kForward, {"x"}, {"y"});
    Trace trace = builder.Build();
    const Op first = trace.ops[0];
    trace.recording = {"PyTorch 2.11.0", gpu, Duration(), Duration(), Bytes(), Bytes()};
    trace.ops = std::move(ops);
    for (Op& op : trace.ops) {
      op.inputs = first.inputs;
      op.outputs = first.outputs;
    }
    return trace;
  }

  double RooflineOf(const Op& op, const Device& device) const {
    return RooflineCostModel(device).Kernels(op, 0, 1)[0].time.seconds();
  }

  OperatorTable TableOf(const std::vector<Product>& products) const {
    std::vector<Op> ops;
    for (const Product& product : products) {
      Op op = OpOf(product);
      op.recorded->time =
          Duration::Picoseconds(std::llround(1e12 * product.slower * RooflineOf(op, device_)));
      op.recorded->workspace = product.workspace;
      ops.push_back(op);
    }
    return {TraceOf(ops, device_.gpus[0]), device_};
  }

  // Returns the estimated time over that of the roofline.
  double SlowerOf(const OperatorTable& table, const Op& op) const {
    const Trace timed = table.Timed(TraceOf({op}, ""));
    EXPECT_EQ(timed.recording->device, device_.gpus[0]);
    return timed.ops[0].recorded->time.seconds() / RooflineOf(op, device_);
  }

  const Device device_ = ReadDevice(testing::InSource("sim/devices/h200.toml"));
};

TEST_F(OperatorTableTest, AMeasuredOpHasItsTime) {
  const OperatorTable table = TableOf({{1024, 2.0}, {2048, 1.5}, {2048, 1.1, true}});
  EXPECT_NEAR(SlowerOf(table, OpOf({1024})), 2.0, 1e-6);
  EXPECT_NEAR(SlowerOf(table, OpOf({2048})), 1.5, 1e-6);
  EXPECT_NEAR(SlowerOf(table, OpOf({2048, 0, true})), 1.1, 1e-6);
}

// Between two measured ops the correction lies between theirs, nearer to that of the nearer one.
TEST_F(OperatorTableTest, OthersLieBetweenTheirNeighbours) {
  const OperatorTable table = TableOf({{1024, 2.0}, {4096, 1.0}});
  const double near = SlowerOf(table, OpOf({1280})), far = SlowerOf(table, OpOf({3500}));
  EXPECT_LT(near, 2.0);
  EXPECT_GT(near, std::sqrt(2.0));
  EXPECT_LT(far, std::sqrt(2.0));
  EXPECT_GT(far, 1.0);
}

// The mean of the six nearest would be 1.98 and 0.22. The trend reaches further, up to the most and
// the least that was measured.
TEST_F(OperatorTableTest, TheTrendCountsOutsideTheTable) {
  std::vector<Product> products;
  for (int i = 0; i < 12; ++i) products.push_back({std::exp2(6 + i), std::exp(0.2 * i)});
  const OperatorTable table = TableOf(products);
  EXPECT_GT(std::log(SlowerOf(table, OpOf({std::exp2(6 + 13)}))), 2.1);
  EXPECT_LE(std::log(SlowerOf(table, OpOf({std::exp2(6 + 13)}))), 2.2 + 1e-4);
  EXPECT_LT(std::log(SlowerOf(table, OpOf({std::exp2(6 - 2)}))), 0.1);
}

// Equal ops are looked up once; another table does not know them.
TEST_F(OperatorTableTest, TwoTablesDoNotShare) {
  const OperatorTable one = TableOf({{1024, 2.0}}), other = TableOf({{1024, 3.0}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(SlowerOf(one, OpOf({4096})), 2.0, 1e-5);
    EXPECT_NEAR(SlowerOf(other, OpOf({4096})), 3.0, 1e-5);
  }
}

TEST_F(OperatorTableTest, AnotherLayoutIsFarAway) {
  const OperatorTable table =
      TableOf({{1024, 1.5, true}, {8192, 1.5, true}, {2048, 1.0}, {4096, 1.0}});
  EXPECT_LT(SlowerOf(table, OpOf({1100})), 1.2);
}

TEST_F(OperatorTableTest, AnUnknownOpHasTheTimeOfTheRoofline) {
  const OperatorTable table = TableOf({{1024, 2.0}});
  Op op = OpOf({1024});
  op.slots[0].signature = "aten::relu";
  EXPECT_NEAR(SlowerOf(table, op), 1, 1e-5);
  op = OpOf({1024});
  op.slots[0].arithmetic = Arithmetic::kFp32;
  EXPECT_NEAR(SlowerOf(table, op), 1, 1e-5);
}

// Convolutions of 60 channels are like those of 44, which divide by 4 as well, and not like those
// of 64, which are nearer.
TEST_F(OperatorTableTest, ChannelsThatDivideAlike) {
  const auto measured = [&](double channels, double slower) {
    Op op = OpOf({1024});
    op.attributes = {{"in_channels", channels}, {"out_channels", channels}, {"groups", 1}};
    op.recorded->time =
        Duration::Picoseconds(std::llround(1e12 * slower * RooflineOf(op, device_)));
    return op;
  };
  std::vector<Op> ops;
  for (const double channels : {20.0, 44.0, 76.0}) ops.push_back(measured(channels, 2));
  for (const double channels : {32.0, 64.0, 128.0}) ops.push_back(measured(channels, 1));
  const OperatorTable table(TraceOf(ops, device_.gpus[0]), device_);
  const auto asked = [&](double channels) {
    Op op = measured(channels, 1);
    op.recorded->time = Duration();
    return SlowerOf(table, op);
  };
  EXPECT_GT(asked(60), 1.6);
  EXPECT_LT(asked(96), 1.2);
}

// Windows with gaps are far from those without, which traces do not mention.
TEST_F(OperatorTableTest, Dilation) {
  const auto convolution = [&](double channels, double dilation, double slower) {
    Op op = OpOf({1024});
    op.attributes = {{"in_channels", channels}, {"out_channels", channels}, {"groups", 1}};
    if (dilation > 1) op.attributes.push_back({"dilation", dilation});
    op.recorded->time =
        Duration::Picoseconds(std::llround(1e12 * slower * RooflineOf(op, device_)));
    return op;
  };
  std::vector<Op> ops;
  for (const double channels : {32.0, 128.0, 256.0}) ops.push_back(convolution(channels, 12, 5));
  for (const double channels : {64.0, 512.0, 1024.0}) ops.push_back(convolution(channels, 1, 1));
  const OperatorTable table(TraceOf(ops, device_.gpus[0]), device_);
  const auto asked = [&](double dilation) {
    Op op = convolution(128, dilation, 1);
    op.recorded->time = Duration();
    return SlowerOf(table, op);
  };
  EXPECT_GT(asked(18), 3.5);
  EXPECT_LT(asked(1), 1.3);
}

// If the table has ops with the types of the operands, others do not count.
TEST_F(OperatorTableTest, TypesOfOperands) {
  const auto measured = [&](int64_t rows, double slower, uint32_t input) {
    Op op = OpOf({static_cast<double>(rows)});
    op.recorded->time =
        Duration::Picoseconds(std::llround(1e12 * slower * RooflineOf(op, device_)));
    op.inputs = {TensorId{input}};
    return op;
  };
  Trace trace = TraceOf({OpOf({1}), OpOf({1})}, device_.gpus[0]);
  trace.tensors.push_back(trace.tensors[0]);
  trace.tensors[2].dtype = DataType::kBfloat16;
  const std::vector<TensorId> outputs = trace.ops[0].outputs;
  trace.ops = {measured(1024, 2, 0), measured(8192, 3, 2)};
  for (Op& op : trace.ops) op.outputs = outputs;
  const OperatorTable table(trace, device_);
  const auto slower = [&](uint32_t input) {
    Trace asked = trace;
    asked.ops = {OpOf({4096})};
    asked.ops[0].inputs = {TensorId{input}};
    asked.ops[0].outputs = outputs;
    return table.Timed(asked).ops[0].recorded->time.seconds() / RooflineOf(asked.ops[0], device_);
  };
  EXPECT_NEAR(slower(0), 2.0, 1e-4);
  EXPECT_NEAR(slower(2), 3.0, 1e-4);
}

// An op that moves and computes nothing takes no time, and an op that has a time keeps it.
TEST_F(OperatorTableTest, LeavesOtherOpsAlone) {
  const OperatorTable table = TableOf({{1024, 2.0}});
  Op nothing = OpOf({0}), timed = OpOf({1024});
  nothing.slots[0].traffic = Bytes(0);
  timed.recorded->time = Duration::Milliseconds(3);
  const Trace trace = table.Timed(TraceOf({nothing, timed}, ""));
  EXPECT_EQ(trace.ops[0].recorded->time, Duration());
  EXPECT_EQ(trace.ops[0].recorded->gap, Duration());
  EXPECT_EQ(trace.ops[1].recorded->time, Duration::Milliseconds(3));
}

// The workspace grows with the traffic, and a recorded one that is larger stays.
TEST_F(OperatorTableTest, Workspaces) {
  const OperatorTable table = TableOf({{1024, 1, false, Bytes::MiB(3)}});
  Op op = OpOf({1024});
  EXPECT_EQ(table.Timed(TraceOf({op}, "")).ops[0].recorded->workspace, Bytes::MiB(3));
  op.recorded->workspace = Bytes::MiB(4);
  EXPECT_EQ(table.Timed(TraceOf({op}, "")).ops[0].recorded->workspace, Bytes::MiB(4));
  op = OpOf({2048});
  EXPECT_EQ(table.Timed(TraceOf({op}, "")).ops[0].recorded->workspace, Bytes::MiB(5));
}

// Between 1/6 and 64/18 of the traffic lies their geometric mean, 0.77: 7.7 of 10 MiB.
TEST_F(OperatorTableTest, AWorkspaceBetweenTwo) {
  const OperatorTable table =
      TableOf({{1024, 1, false, Bytes::MiB(1)}, {4096, 1, false, Bytes::MiB(64)}});
  const Bytes workspace = table.Timed(TraceOf({OpOf({2048})}, "")).ops[0].recorded->workspace;
  EXPECT_NEAR(static_cast<double>(workspace.count()) / (1 << 20), 7.7, 1.5);
}

// On another GPU, an estimate is scaled as a measured time is: so is what exceeds the roofline.
TEST_F(OperatorTableTest, ScaledToAnotherGpu) {
  const Device a100 = ReadDevice(testing::InSource("sim/devices/a100.toml"));
  const OperatorTable table = TableOf({{1024, 2.0}});
  const Op op = OpOf({4096});
  const Trace timed = table.Timed(TraceOf({op}, ""));
  const RecordedCostModel cost(*timed.recording, a100, device_, "estimated");
  const double beyond = cost.Kernels(timed.ops[0], 0, 1)[0].time.seconds() - RooflineOf(op, a100);
  EXPECT_NEAR(beyond / RooflineOf(op, device_), 67 / (2 * 19.5), 1e-4);
  EXPECT_EQ(cost.Provenance(), "estimated, scaled by the rooflines of the two");
}

// A table of products alone takes other ops from another GPU's table, whose products do not count.
// What exceeds the roofline is scaled by the instructions that both issue.
TEST_F(OperatorTableTest, WhatATableLacksComesFromAnotherOne) {
  const Device a100 = ReadDevice(testing::InSource("sim/devices/a100.toml"));
  Op addition = OpOf({4096}), given = OpOf({4096});
  addition.slots[0].signature = "aten::add";
  given.recorded->time = Duration::Milliseconds(3);
  std::vector<Op> measured{OpOf({4096}), addition};
  for (Op& op : measured) {
    op.recorded->time = Duration::Picoseconds(std::llround(3e12 * RooflineOf(op, a100)));
    op.recorded->workspace = Bytes::MiB(3);
  }
  const OperatorTable other(TraceOf(measured, a100.gpus[0]), a100);
  const Trace timed =
      TableOf({{4096, 2.0}}).TimedOver(other, TraceOf({OpOf({4096}), addition, given}, ""));
  EXPECT_EQ(timed.recording->device, device_.gpus[0]);
  EXPECT_NEAR(timed.ops[0].recorded->time.seconds() / RooflineOf(timed.ops[0], device_), 2, 1e-5);
  const double beyond = timed.ops[1].recorded->time.seconds() - RooflineOf(timed.ops[1], device_);
  EXPECT_NEAR(beyond / RooflineOf(addition, a100), 2 * (2 * 19.5) / 67, 1e-4);
  EXPECT_EQ(timed.ops[1].recorded->workspace, Bytes::MiB(3));
  EXPECT_EQ(timed.ops[2].recorded->time, Duration::Milliseconds(3));
}

}  // namespace
}  // namespace spillway::testing
