#include "experiments/changes/changed_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/changes/other_optimizer.h"
#include "policies/recorded/as_recorded.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

// A step of n samples with the optimizer Adam, in bytes:
//
//   x [n, 2]                8n      input
//   w [64, 64]           16384      parameter with the moments m and v, 16384 each
//   b [8]                   32      parameter with the moments mb and vb, 32 each
//   forward   mm:        x, w -> y      256n
//             loss:      y -> p         256n
//             mean:      p -> l         4, which the program holds until the end
//   backward  loss.bwd:  p -> dy        256n
//             mm.dw:     x, dy -> dw    16384
//             db:        dy -> db       32
//   update    moments:   dw, m, v -> m, v
//             empty:     -> t           16384, a temporary tensor
//             root:      v -> t
//             div_:      t -> t
//             step:      m, t, w -> w
//             small:     db, mb, vb, b -> mb, vb, b
Trace Step(int64_t n, const std::function<void(testing::TraceBuilder&)>& more = {}) {
  testing::TraceBuilder builder;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  const auto tensor = [&](const std::string& name, TensorKind kind, std::vector<int64_t> shape) {
    int64_t bytes = 4;
    for (const int64_t extent : shape) bytes *= extent;
    builder.Tensor(name, kind, bytes);
    shapes.emplace_back(name, std::move(shape));
  };
  using enum TensorKind;
  tensor("x", kInput, {n, 2});
  tensor("w", kParameter, {64, 64});
  tensor("b", kParameter, {8});
  for (const char* moment : {"m", "v"}) tensor(moment, kOptimizerState, {64, 64});
  for (const char* moment : {"mb", "vb"}) tensor(moment, kOptimizerState, {8});
  for (const char* name : {"y", "p"}) tensor(name, kActivation, {n, 64});
  tensor("l", kActivation, {});
  tensor("dy", kGradient, {n, 64});
  tensor("dw", kParameterGradient, {64, 64});
  tensor("db", kParameterGradient, {8});
  tensor("t", kGradient, {64, 64});
  builder.Op("mm", Phase::kForward, {"x", "w"}, {"y"}, OpType::kMatmul);
  builder.Op("loss", Phase::kForward, {"y"}, {"p"});
  builder.Op("mean", Phase::kForward, {"p"}, {"l"});
  builder.Op("loss.bwd", Phase::kBackward, {"p"}, {"dy"});
  builder.Op("mm.dw", Phase::kBackward, {"x", "dy"}, {"dw"}, OpType::kMatmul);
  builder.Op("db", Phase::kBackward, {"dy"}, {"db"});
  if (more) more(builder);
  builder.Op("moments", Phase::kUpdate, {"dw", "m", "v"}, {"m", "v"});
  builder.Op("empty", Phase::kUpdate, {}, {"t"});
  builder.Op("root", Phase::kUpdate, {"v"}, {"t"});
  builder.Op("div_", Phase::kUpdate, {"t"}, {"t"});
  builder.Op("step", Phase::kUpdate, {"m", "t", "w"}, {"w"});
  builder.Op("small", Phase::kUpdate, {"db", "mb", "vb", "b"}, {"mb", "vb", "b"});
  Trace trace = builder.Build();
  for (auto& [name, shape] : shapes) trace.tensors[Index(builder.Id(name))].shape = shape;
  trace.batch = n;
  trace.name = "small:" + std::to_string(n);
  trace.recording = {"PyTorch", "GPU", Duration::Milliseconds(1), Duration(), Bytes(9), Bytes(9)};
  for (Op& op : trace.ops) {
    op.batch = op.phase == Phase::kUpdate ? 1 : n;
    op.recorded = {Duration::Microseconds(8), Duration(), Duration::Microseconds(1), Bytes()};
    op.slots[0].signature = op.name;
  }
  for (const char* held : {"l", "dw", "db"}) {
    trace.tensors[Index(builder.Id(held))].held_until = OpId(trace.ops.size() - 1);
  }
  trace.Validate();
  return trace;
}

constexpr int64_t kPersistent = 3 * (16384 + 32);

int64_t PeakOf(const Trace& trace) {
  Policy nothing;
  const testing::FixedCost cost;
  return testing::RunSim(HeldAsRecorded(trace), cost, nothing)
      .report.metrics.peak_requested.count();
}

const Op& OpOf(const Trace& trace, const std::string& name) {
  for (const Op& op : trace.ops) {
    if (op.name == name) return op;
  }
  throw std::out_of_range(name);
}

const Tensor& TensorOf(const Trace& trace, const std::string& name) {
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range(name);
}

// Returns the names of the ops, in order.
std::string OpsOf(const Trace& trace) {
  std::string text;
  for (const Op& op : trace.ops) text += (text.empty() ? "" : " ") + op.name;
  return text;
}

TEST(ChangedStepTest, TheStepAsItIs) {
  // At `root`: the gradients of w and b, the temporary tensor, and the loss.
  EXPECT_EQ(PeakOf(Step(2)), kPersistent + 16384 + 32 + 16384 + 4);
}

// Gradients live throughout the second pass, which makes those of its own and adds them at once.
TEST(ChangedStepTest, MicroBatchesAddTheirGradients) {
  const Device device = testing::RoundDevice();
  const Trace two = InMicroBatches(Step(2), Step(1), device, 2).value();
  EXPECT_EQ(OpsOf(two),
            "mm loss mean loss.bwd mm.dw db "
            "mm.again loss.again mean.again loss.bwd.again mm.dw.again dw.add_.again db.again "
            "db.add_.again moments empty root div_ step small");
  EXPECT_EQ(two.batch, 2);
  EXPECT_EQ(OpOf(two, "mm.again").batch, 1);
  EXPECT_EQ(TensorOf(two, "x").size, Bytes(16));  // the data of both passes
  EXPECT_EQ(TensorOf(two, "y.again").size, Bytes(256));
  // 3 x 16384 bytes at the memory's bandwidth.
  EXPECT_EQ(OpOf(two, "dw.add_.again").recorded->time, TransferTime(Bytes(49152), device.dram));
  // At mm.dw.again: the data, the gradients of both passes, dy and the loss of the second pass.
  EXPECT_EQ(PeakOf(two), kPersistent + 16 + (16384 + 32) + 16384 + 256 + 4);
  EXPECT_EQ(two.recording->reserved, Bytes());
}

// The gradients of a pass end with it: three passes differ from two in their data.
TEST(ChangedStepTest, EachPassHoldsItsGradientsAlone) {
  const Device device = testing::RoundDevice();
  const Trace two = InMicroBatches(Step(2), Step(1), device, 2).value();
  const Trace three = InMicroBatches(Step(3), Step(1), device, 3).value();
  EXPECT_EQ(three.batch, 3);
  EXPECT_EQ(three.ops.size(), two.ops.size() + 8);
  EXPECT_EQ(OpOf(three, "dw.add_.again.1").inputs[0], OpOf(three, "dw.add_.again").inputs[0]);
  EXPECT_EQ(PeakOf(three), PeakOf(two) + 8);
}

TEST(ChangedStepTest, AnUpdateBetweenPassesCannotWait) {
  const auto early = [](int64_t n) {
    Trace trace = Step(n);
    trace.ops[2].phase = Phase::kUpdate;
    return trace;
  };
  EXPECT_FALSE(InMicroBatches(early(2), early(1), testing::RoundDevice(), 2));
}

TEST(ChangedStepTest, Bfloat16HalvesAllButTheLoss) {
  Trace trace = Step(2);
  trace.ops[1].slots[0].signature = "aten::_log_softmax 2x64";
  trace.ops[3].slots[0].signature = "aten::_log_softmax_backward_data 2x64";
  const Trace half = InBfloat16(trace, testing::RoundDevice(), testing::FixedCost()).value();
  EXPECT_EQ(
      OpsOf(half),
      "mm y.float32 loss mean loss.bwd dy.bfloat16 mm.dw db moments empty root div_ step small");
  const auto size = [&](const char* name) { return TensorOf(half, name).size.count(); };
  EXPECT_EQ(size("w"), 8192);
  EXPECT_EQ(TensorOf(half, "w").dtype, DataType::kBfloat16);
  EXPECT_EQ(size("y"), 256);
  EXPECT_EQ(size("y.float32"), 512);
  EXPECT_EQ(size("p"), 512);
  EXPECT_EQ(size("dy"), 512);
  EXPECT_EQ(size("dy.bfloat16"), 256);
  EXPECT_EQ(OpOf(half, "mm").slots[0].arithmetic, Arithmetic::kBf16);
  for (const char* name : {"loss", "mean", "step"}) {
    EXPECT_EQ(OpOf(half, name).slots[0].arithmetic, Arithmetic::kFp32) << name;
  }
  EXPECT_EQ(PeakOf(half), (kPersistent + 16384 + 32 + 16384 + 4) / 2);
}

TEST(ChangedStepTest, OnlyAStepInFp32GoesToBfloat16) {
  Trace trace = Step(2);
  trace.tensors[Index(trace.ops[0].outputs[0])].dtype = DataType::kBfloat16;  // under autocast
  EXPECT_FALSE(InBfloat16(trace, testing::RoundDevice(), testing::FixedCost()));
  for (Tensor& tensor : trace.tensors) tensor.dtype = DataType::kInt32;
  EXPECT_FALSE(InBfloat16(trace, testing::RoundDevice(), testing::FixedCost()));
}

// 4096 elements take a byte each and 16 scales of 4 bytes; the moments of b remain as they are.
TEST(ChangedStepTest, MomentsIn8Bits) {
  const Device device = testing::RoundDevice();
  const Trace small = With8BitOptimizer(Step(2), device).value();
  EXPECT_EQ(OpsOf(small), "mm loss mean loss.bwd mm.dw db adam8bit.10 small");
  EXPECT_EQ(TensorOf(small, "m").size, Bytes(4096 + 64));
  EXPECT_EQ(TensorOf(small, "mb").size, Bytes(32));
  const Op& update = OpOf(small, "adam8bit.10");
  // It reads w, m, v and the gradient, and writes all but the gradient.
  EXPECT_EQ(update.recorded->time,
            TransferTime(Bytes(2 * (16384 + 2 * 4160) + 16384), device.dram));
  EXPECT_EQ(update.recorded->host, Duration::Microseconds(5));
  // At db: dy, the gradients of w and b, and the loss. No temporary tensor comes later.
  EXPECT_EQ(PeakOf(small), kPersistent - 2 * (16384 - 4160) + 512 + 16384 + 32 + 4);
}

TEST(ChangedStepTest, OtherUpdatesHaveNo8BitForm) {
  const Device device = testing::RoundDevice();
  Trace momentum = Step(2);  // v is a buffer that forward uses
  momentum.ops[2].inputs.push_back(momentum.ops[6].inputs[2]);
  EXPECT_FALSE(With8BitOptimizer(momentum, device));
  Trace inference = Step(2);
  inference.ops.resize(3);
  for (Tensor& tensor : inference.tensors) tensor.held_until.reset();
  EXPECT_FALSE(With8BitOptimizer(inference, device));
  EXPECT_FALSE(WithOffloadedOptimizer(inference, device, testing::FixedCost()));
}

// A copy takes 16384 ns. After 20 us of `db` it has ended; ops of 10 ns leave it to the update.
TEST(ChangedStepTest, GradientsLeaveWhileBackwardGoesOn) {
  const testing::FixedCost slow(Duration::Microseconds(20)), fast(Duration::Nanoseconds(10));
  Trace trace = Step(2);
  for (Op& op : trace.ops) op.recorded->host = {};
  const OffloadedStep during = WithOffloadedOptimizer(trace, testing::RoundDevice(), slow).value();
  EXPECT_EQ(OpsOf(during.trace), "mm loss mean loss.bwd mm.dw db offloaded_adam.10 small");
  EXPECT_EQ(TensorOf(during.trace, "dw").held_until, OpId{5});
  EXPECT_EQ(TensorOf(during.trace, "db").held_until, OpId{7});
  EXPECT_EQ(during.host, Bytes(4 * 16384));
  // The host needs 7 x 16384 bytes at 100 GB/s, 1147 ns; the copy of w back takes 16384 ns.
  const auto time = [](const OffloadedStep& step) {
    return OpOf(step.trace, "offloaded_adam.10").recorded->time;
  };
  EXPECT_EQ(time(during), Duration::Nanoseconds(16384));
  const OffloadedStep late = WithOffloadedOptimizer(trace, testing::RoundDevice(), fast).value();
  EXPECT_EQ(TensorOf(late.trace, "dw").held_until, OpId{6});
  EXPECT_EQ(time(late), Duration::Nanoseconds(16384 - 10 + 16384));
  // At db: parameters and small moments, dy, the gradients of w and b, and the loss.
  EXPECT_EQ(PeakOf(during.trace), 16384 + 96 + 512 + 16384 + 32 + 4);
}

// Two moments of 16384 bytes in sixteen parts of 2048.
TEST(ChangedStepTest, UpdatesInPartsHaveTheirStateApart) {
  const testing::FixedCost cost(Duration::Nanoseconds(1600));
  const Trace trace = Step(2);
  const Trace late = WithUpdatesInParts(trace, cost, false).value();
  std::string parts;
  for (int part = 0; part < 16; ++part) parts += fmt::format(" update{}.10", part);
  EXPECT_EQ(OpsOf(late), "mm loss mean loss.bwd mm.dw db" + parts + " update_rest.10 small");
  const Tensor& state = TensorOf(late, "update3.10.state");
  EXPECT_EQ(state.size, Bytes(2048));
  EXPECT_TRUE(state.movable);
  EXPECT_FALSE(TensorOf(late, "dw").movable);
  int64_t ops = 0;  // of the update
  for (const Op& op : trace.ops) ops += op.phase == Phase::kUpdate && op.name != "small";
  EXPECT_EQ(OpOf(late, "update3.10").recorded->time, Duration::Nanoseconds(100 * ops));
  EXPECT_EQ(OpOf(late, "update_rest.10").recorded->time, Duration());
  // Where all state stays, all but temporary tensors is as before.
  EXPECT_EQ(PeakOf(late), kPersistent + 512 + 16384 + 32 + 4);

  const Trace half = WithUpdatesInParts(trace, cost, false, 4).value();
  EXPECT_EQ(TensorOf(half, "update7.10.state").size, Bytes(2048));
  const Tensor& rest = TensorOf(half, "update_rest.10.state");
  EXPECT_EQ(rest.size, Bytes(16384));
  EXPECT_FALSE(rest.movable);
  EXPECT_EQ(OpOf(half, "update_rest.10").recorded->time, Duration::Nanoseconds(800 * ops));
  EXPECT_EQ(OpsOf(half).find("update8"), std::string::npos);
}

TEST(ChangedStepTest, EarlyUpdatesFreeGradients) {
  const testing::FixedCost cost(Duration::Nanoseconds(10));
  const Trace early = WithUpdatesInParts(Step(2), cost, true).value();
  std::string parts;
  for (int part = 0; part < 16; ++part) parts += fmt::format(" update{}.10", part);
  EXPECT_EQ(OpsOf(early), "mm loss mean loss.bwd mm.dw" + parts + " db update_rest.10 small");
  EXPECT_FALSE(TensorOf(early, "dw").held_until);
  EXPECT_EQ(TensorOf(early, "db").held_until, OpId{23});
  // At mm.dw: x, dy, the gradient of w, and the loss.
  EXPECT_EQ(PeakOf(early), kPersistent + 16 + 512 + 16384 + 4);
}

// u and s have one size, and their gradients come in the other order. Backward still reads u then.
TEST(ChangedStepTest, EarlyUpdatesWriteTheParametersOfTheirGradients) {
  const Trace early =
      WithUpdatesInParts(Step(2,
                              [](testing::TraceBuilder& builder) {
                                for (const std::string name : {"u", "s"}) {
                                  builder.Tensor(name, TensorKind::kParameter, 16384)
                                      .Tensor("m" + name, TensorKind::kOptimizerState, 16384)
                                      .Tensor("v" + name, TensorKind::kOptimizerState, 16384);
                                }
                                for (const std::string name : {"s", "u"}) {
                                  builder.Tensor("d" + name, TensorKind::kParameterGradient, 16384);
                                  builder.Op("d" + name, Phase::kBackward, {"dy"}, {"d" + name});
                                }
                                builder.Tensor("dx", TensorKind::kGradient, 32);
                                builder.Op("dx", Phase::kBackward, {"dy", "u"}, {"dx"});
                                for (const std::string name : {"u", "s"}) {
                                  const std::string m = "m" + name, v = "v" + name;
                                  builder.Op(name + ".step", Phase::kUpdate,
                                             {"d" + name, m, v, name}, {m, v, name});
                                }
                              }),
                         testing::FixedCost(), true)
          .value();
  int updates = 0;
  bool read = false;
  for (const Op& op : early.ops) {
    const auto has = [&](const std::vector<TensorId>& ids, const std::string& name) {
      return std::ranges::any_of(ids, [&](TensorId id) { return early.tensor(id).name == name; });
    };
    read = read || op.name == "dx";
    if (!op.name.starts_with("update")) continue;
    EXPECT_TRUE(read || !has(op.outputs, "u")) << op.name;
    for (const std::string name : {"u", "s"}) {
      EXPECT_EQ(has(op.outputs, name), has(op.inputs, "d" + name)) << op.name;
      updates += has(op.outputs, name) ? 1 : 0;
    }
  }
  EXPECT_GT(updates, 1);
}

// The copy of du waits for that of dw. Both end long after backward, 20 ns after mm.dw and at its
// end.
TEST(ChangedStepTest, GradientsLeaveOneAfterTheOther) {
  Trace trace = Step(2, [](testing::TraceBuilder& builder) {
    builder.Tensor("u", TensorKind::kParameter, 16384)
        .Tensor("mu", TensorKind::kOptimizerState, 16384)
        .Tensor("vu", TensorKind::kOptimizerState, 16384)
        .Tensor("du", TensorKind::kParameterGradient, 16384);
    builder.Op("du", Phase::kBackward, {"dy"}, {"du"});
    builder.Op("u.step", Phase::kUpdate, {"du", "mu", "vu", "u"}, {"mu", "vu", "u"});
  });
  for (Op& op : trace.ops) op.recorded->host = {};
  const OffloadedStep step = WithOffloadedOptimizer(trace, testing::RoundDevice(),
                                                    testing::FixedCost(Duration::Nanoseconds(10)))
                                 .value();
  EXPECT_EQ(OpOf(step.trace, "offloaded_adam.12").recorded->time,
            Duration::Nanoseconds(2 * 16384 - 20 + 2 * 16384));
}

TEST(ChangedStepTest, EachPassWaitsForItsOwnLanes) {
  const auto step = [](int64_t n) {
    Trace trace = Step(n);
    trace.ops[3].lane = 1;  // loss.bwd
    for (const size_t waiting : {4, 6}) trace.ops[waiting].after = {OpId{3}};
    trace.Validate();
    return trace;
  };
  const Trace passes = InMicroBatches(step(4), step(2), testing::RoundDevice(), 2).value();
  const auto awaited = [&](const std::string& op) {
    return passes.op(OpOf(passes, op).after.at(0)).name;
  };
  EXPECT_EQ(awaited("mm.dw"), "loss.bwd");
  EXPECT_EQ(awaited("mm.dw.again"), "loss.bwd.again");
  EXPECT_EQ(awaited("moments"), "loss.bwd.again");
}

TEST(ChangedStepTest, GradientsThatAccumulateStay) {
  const Trace passes = Step(2, [](testing::TraceBuilder& builder) {
    builder.Op("mm.later", Phase::kForward, {"x", "w"}, {"y"});
    builder.Op("mm.dw.later", Phase::kBackward, {"x", "y", "dw"}, {"dw"});
  });
  EXPECT_FALSE(WithOffloadedOptimizer(passes, testing::RoundDevice(), testing::FixedCost()));
  EXPECT_FALSE(WithUpdatesInParts(passes, testing::FixedCost(), true));
  EXPECT_TRUE(WithUpdatesInParts(passes, testing::FixedCost(), false));
  EXPECT_TRUE(With8BitOptimizer(passes, testing::RoundDevice()));
}

TEST(ChangedStepTest, GradientsThatAreClippedStay) {
  Trace clipped = Step(2, [](testing::TraceBuilder& builder) {
    builder.Tensor("norm", TensorKind::kGradient, 4);
    builder.Op("clip", Phase::kUpdate, {"dw"}, {"dw", "norm"});
  });
  clipped.ops[7].inputs.push_back(clipped.ops[6].outputs[1]);  // moments read the norm
  EXPECT_FALSE(WithOffloadedOptimizer(clipped, testing::RoundDevice(), testing::FixedCost()));
  EXPECT_FALSE(WithUpdatesInParts(clipped, testing::FixedCost(), true));
  EXPECT_TRUE(WithUpdatesInParts(clipped, testing::FixedCost(), false));
  const Trace small = With8BitOptimizer(clipped, testing::RoundDevice()).value();
  EXPECT_EQ(OpsOf(small), "mm loss mean loss.bwd mm.dw db clip adam8bit.11 small");
  EXPECT_EQ(TensorOf(small, "norm").held_until, OpId{7});
}

// The model has requests 0 and 1. An earlier step has asked for 2, which it gave back, for 3, which
// the program still has, and for the moments.
TEST(ChangedStepTest, EarlierStepsOfSeveralProcessesAreForgotten) {
  Trace step = Step(4);
  const auto named = [&](const std::string& name) -> Tensor& {
    return *std::ranges::find(step.tensors, name, &Tensor::name);
  };
  step.recording->requests = {{Bytes(32), 2}, {Bytes(16384)}, {Bytes(512), 4},
                              {Bytes(8)},     {Bytes(16384)}, {Bytes(16384)}};
  named("w").request = 1;
  named("m").request = 4;
  named("v").request = 5;
  const auto alone = std::make_shared<const Trace>(step);
  EXPECT_EQ(WithoutEarlierSteps(alone), alone);
  step.ops[0].slots[0].signature = "all_gather 4";
  step.ops[0].attributes = {{"bytes", 64}, {"ranks", 4}, {"stride", 1}};
  const auto made = WithoutEarlierSteps(std::make_shared<const Trace>(step));
  for (size_t i : {2, 4, 5}) step.recording->requests[i].size = Bytes();
  named("m").request = named("v").request = std::nullopt;
  EXPECT_EQ(*made, step);
  made->Validate();
}

}  // namespace
}  // namespace spillway::testing
