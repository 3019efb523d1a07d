#include "experiments/changes/loss_in_chunks.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "policies/recorded/as_recorded.h"
#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

// A step of 2 samples of 4 tokens, whose head makes logits of 64 words from rows of 2 numbers:
//
//   w [2, 64]    512 bytes                      h [8, 2]      64 bytes, made by `body`
//   forward   head:  h, w -> y [8, 64]  2048     soft: y -> p [8, 64]   2048
//             nll:   p -> l             4
//   backward  nll.bwd:  p -> dp  2048            soft.bwd: dp, p -> dy  2048
//             head.dw:  dy, h -> dw 512          head.dh:  dy, w -> dh  64
//             body.bwd: dh -> db    8
//   update    step:  dw, db, w -> w
Trace Step(const std::function<void(testing::TraceBuilder&)>& more = {}, int64_t batch = 2) {
  testing::TraceBuilder builder;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  const auto tensor = [&](const std::string& name, TensorKind kind, std::vector<int64_t> shape) {
    int64_t bytes = 4;
    for (const int64_t extent : shape) bytes *= extent;
    builder.Tensor(name, kind, bytes);
    shapes.emplace_back(name, std::move(shape));
  };
  using enum TensorKind;
  tensor("x", kInput, {2, 4});
  tensor("w", kParameter, {2, 64});
  tensor("h", kActivation, {8, 2});
  for (const char* name : {"y", "p"}) tensor(name, kActivation, {8, 64});
  tensor("l", kActivation, {});
  for (const char* name : {"dp", "dy"}) tensor(name, kGradient, {8, 64});
  tensor("dh", kGradient, {8, 2});
  tensor("dw", kParameterGradient, {2, 64});
  tensor("db", kParameterGradient, {2});
  builder.Op("body", Phase::kForward, {"x"}, {"h"});
  builder.Op("head", Phase::kForward, {"h", "w"}, {"y"}, OpType::kMatmul);
  builder.Op("soft", Phase::kForward, {"y"}, {"p"});
  builder.Op("nll", Phase::kForward, {"p", "x"}, {"l"});
  if (more) more(builder);
  builder.Op("nll.bwd", Phase::kBackward, {"p", "x"}, {"dp"});
  builder.Op("soft.bwd", Phase::kBackward, {"dp", "p"}, {"dy"});
  builder.Op("head.dw", Phase::kBackward, {"dy", "h"}, {"dw"}, OpType::kMatmul);
  builder.Op("head.dh", Phase::kBackward, {"dy", "w"}, {"dh"}, OpType::kMatmul);
  builder.Op("body.bwd", Phase::kBackward, {"dh"}, {"db"});
  builder.Op("step", Phase::kUpdate, {"dw", "db", "w"}, {"w"});
  Trace trace = builder.Build();
  for (auto& [name, shape] : shapes) trace.tensors[Index(builder.Id(name))].shape = shape;
  trace.batch = batch;
  trace.recording = {"PyTorch", "GPU", Duration::Milliseconds(1), Duration(), Bytes(9), Bytes(9)};
  for (Op& op : trace.ops) {
    op.batch = batch;
    op.recorded = {Duration::Microseconds(8), Duration(), Duration::Microseconds(1), Bytes()};
    op.slots[0].signature = op.name == "soft" ? "aten::_log_softmax 8x64" : "aten::" + op.name;
  }
  trace.Validate();
  return trace;
}

int64_t PeakOf(const Trace& trace) {
  Policy nothing;
  return testing::RunSim(HeldAsRecorded(trace), testing::FixedCost(), nothing)
      .report.metrics.peak_requested.count();
}

std::string OpsOf(const Trace& trace) {
  std::string text;
  for (const Op& op : trace.ops) text += (text.empty() ? "" : " ") + op.name;
  return text;
}

TEST(LossInChunksTest, EachChunkHasItsPartOfTheLogits) {
  const Device device = testing::RoundDevice();
  // At soft.bwd: the parameter, the rows, and three times the logits.
  EXPECT_EQ(PeakOf(Step()), 512 + 64 + 3 * 2048);
  const Trace two = WithLossInChunks(Step(), device, 2).value();
  EXPECT_EQ(OpsOf(two),
            "body head.chunk0 soft.chunk0 nll.chunk0 nll.bwd.chunk0 soft.bwd.chunk0 "
            "head.dw.chunk0 head.dh.chunk0 dh.copy_.chunk0 "
            "head.chunk1 soft.chunk1 nll.chunk1 l.add_.chunk1 nll.bwd.chunk1 soft.bwd.chunk1 "
            "head.dw.chunk1 dw.add_.chunk1 head.dh.chunk1 dh.copy_.chunk1 body.bwd step");
  // At soft.bwd of the second chunk: the gradients of the first one, too.
  EXPECT_EQ(PeakOf(two), 512 + 64 + 512 + 64 + 3 * 1024);
  EXPECT_EQ(two.recording->reserved, Bytes());
  const auto time_of = [](const Trace& trace) {
    Duration time;
    for (const Op& op : trace.ops) {
      if (op.name.find("_.chunk") == std::string::npos) time += op.recorded->time;
    }
    return time;
  };
  EXPECT_EQ(time_of(two), time_of(Step()));
  for (const int64_t chunks : {3, 8}) {  // chunks of 2 or 3 rows, and of one
    const Trace some = WithLossInChunks(Step(), device, chunks).value();
    EXPECT_EQ(time_of(some), time_of(Step()));
    // At soft.bwd of a chunk before the last, which still needs the data and the loss.
    EXPECT_EQ(PeakOf(some), 512 + 64 + 512 + 64 + 32 + 4 + 3 * 256 * (chunks == 3 ? 3 : 1));
  }
}

// What reads the loss between forward and backward comes after all chunks.
TEST(LossInChunksTest, ReadersOfTheLossFollow) {
  const auto log = [](testing::TraceBuilder& builder) {
    builder.Tensor("logged", TensorKind::kActivation, 4);
    builder.Op("log", Phase::kForward, {"l"}, {"logged"});
  };
  const Trace two = WithLossInChunks(Step(log), testing::RoundDevice(), 2).value();
  EXPECT_NE(OpsOf(two).find("dh.copy_.chunk1 log body.bwd"), std::string::npos) << OpsOf(two);
}

// The gradient of the loss has its shape, and does not wait for it.
TEST(LossInChunksTest, TheGradientOfTheLossComesBefore) {
  const auto ones = [](testing::TraceBuilder& builder) {
    builder.Tensor("one", TensorKind::kActivation, 4);
    builder.Op("ones_like", Phase::kForward, {"l"}, {"one"});
    builder.Tensor("dz", TensorKind::kGradient, 2048);
    builder.Op("z.bwd", Phase::kBackward, {"one", "p"}, {"dz"});
  };
  const Trace two = WithLossInChunks(Step(ones), testing::RoundDevice(), 2).value();
  EXPECT_TRUE(OpsOf(two).starts_with("body ones_like head.chunk0 ")) << OpsOf(two);
}

TEST(LossInChunksTest, OtherStepsHaveNone) {
  const Device device = testing::RoundDevice();
  EXPECT_FALSE(WithLossInChunks(Step({}, 8), device, 2));  // one row for each sample
  EXPECT_FALSE(WithLossInChunks(Step(), device, 9));
  const auto second_loss = [](testing::TraceBuilder& builder) {
    builder.Tensor("q", TensorKind::kActivation, 2048);
    builder.Op("soft2", Phase::kForward, {"y"}, {"q"});
  };
  Trace two = Step(second_loss);
  for (Op& op : two.ops) {
    if (op.name == "soft2") op.slots[0].signature = "aten::_log_softmax 8x64";
  }
  EXPECT_FALSE(WithLossInChunks(two, device, 2));
  const auto scaled = [](testing::TraceBuilder& builder) {  // backward needs the loss
    builder.Tensor("s", TensorKind::kActivation, 4);
    builder.Op("scale", Phase::kForward, {"l"}, {"s"});
    builder.Tensor("dz", TensorKind::kGradient, 2048);
    builder.Op("z.bwd", Phase::kBackward, {"s", "p"}, {"dz"});
  };
  EXPECT_FALSE(WithLossInChunks(Step(scaled), device, 2));
}

}  // namespace
}  // namespace spillway::testing
