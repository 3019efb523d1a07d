#include "experiments/changes/other_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fixtures.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

constexpr const char* kNetworks[] = {"alexnet", "vgg16", "googlenet", "resnet50", "densenet121"};

Trace Lowered(const std::string& network, int64_t batch, bool training = true) {
  return LowerNetwork(BuildNetwork(network), {batch, "torch", training});
}

// Expects that all tensors are equal, and that the work is: operations exactly, traffic within 5 %
// of each op's, because the weights' share of it is estimated.
void ExpectAlike(const Trace& scaled, const Trace& lowered) {
  EXPECT_EQ(scaled.name, lowered.name);
  EXPECT_EQ(scaled.batch, lowered.batch);
  for (size_t i = 0; i < lowered.tensors.size(); ++i) {
    ASSERT_EQ(scaled.tensors[i], lowered.tensors[i]) << lowered.tensors[i].name;
  }
  for (size_t i = 0; i < lowered.ops.size(); ++i) {
    const Op& op = lowered.ops[i];
    ASSERT_EQ(scaled.ops[i].batch, op.batch) << op.name;
    ASSERT_EQ(scaled.ops[i].flops(), op.flops()) << op.name;
    const auto traffic = static_cast<double>(op.traffic().count());
    EXPECT_NEAR(static_cast<double>(scaled.ops[i].traffic().count()), traffic, 0.05 * traffic)
        << op.name;
  }
}

TEST(OtherBatchTest, AScaledNetworkIsTheNetworkAtThatBatch) {
  for (const std::string network : kNetworks) {
    for (const bool training : {true, false}) {
      SCOPED_TRACE(network);
      ExpectAlike(ScaledToBatch(Lowered(network, 24, training), 48),
                  Lowered(network, 48, training));
      ExpectAlike(ScaledToBatch(Lowered(network, 48, training), 9), Lowered(network, 9, training));
    }
  }
}

// A recorded step of 4 samples of 6 tokens, flattened to 24 rows:
//
//   forward    embed: ids, table -> h      [4, 6, 8]
//              positions: -> p             [6, 8]       does not depend on the data
//              cast: w -> w16              [8, 8]       nor does the copy of a parameter
//              mm: h, w16, scale -> y      [24, 8]      with one number per channel, s [8]
//   backward   mm.dw: h, y -> dw16         [8, 8]       becomes the gradient of w
//              mm.dx: y, w16 -> dx         [24, 8]      becomes the gradient of the table
//              cast.bwd: dw16 -> dw
//              embed.bwd: dx -> dtable
//   update     step: w, dw -> w
// All extents but 6 are multiples of the batch.
Trace Recorded() {
  testing::TraceBuilder builder;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  const auto tensor = [&](const std::string& name, TensorKind kind, std::vector<int64_t> shape) {
    int64_t bytes = 4;
    for (const int64_t extent : shape) bytes *= extent;
    builder.Tensor(name, kind, bytes);
    shapes.emplace_back(name, std::move(shape));
  };
  using enum TensorKind;
  tensor("ids", kInput, {4, 6});
  tensor("table", kParameter, {100, 8});
  tensor("h", kActivation, {4, 6, 8});
  tensor("p", kActivation, {6, 8});
  tensor("w", kParameter, {8, 8});
  tensor("w16", kActivation, {8, 8});
  tensor("scale", kParameter, {8});
  tensor("s", kActivation, {8});
  tensor("y", kActivation, {24, 8});
  tensor("dw16", kGradient, {8, 8});
  tensor("dx", kGradient, {24, 8});
  tensor("dw", kParameterGradient, {8, 8});
  tensor("dtable", kParameterGradient, {100, 8});
  builder.Op("embed", Phase::kForward, {"ids", "table"}, {"h"});
  builder.Op("positions", Phase::kForward, {}, {"p"});
  builder.Op("cast", Phase::kForward, {"w"}, {"w16"});
  builder.Op("mm", Phase::kForward, {"h", "w16", "scale"}, {"y", "s"});
  builder.Op("mm.dw", Phase::kBackward, {"h", "y"}, {"dw16"});
  builder.Op("mm.dx", Phase::kBackward, {"y", "w16"}, {"dx"});
  builder.Op("cast.bwd", Phase::kBackward, {"dw16"}, {"dw"});
  builder.Op("embed.bwd", Phase::kBackward, {"dx"}, {"dtable"});
  builder.Op("step", Phase::kUpdate, {"w", "dw"}, {"w"});
  Trace trace = builder.Build();
  for (auto& [name, shape] : shapes) trace.tensors[Index(builder.Id(name))].shape = shape;
  trace.network = "small";
  trace.batch = 4;
  trace.name = "small:4";
  trace.recording = {"PyTorch", "GPU", Duration::Milliseconds(1), Duration(), Bytes(9), Bytes(9)};
  for (Op& op : trace.ops) {
    op.batch = op.phase == Phase::kUpdate ? 1 : 4;
    op.recorded = {Duration::Microseconds(8), Duration::Microseconds(1), Duration::Microseconds(2),
                   Bytes(40)};
    op.slots[0].traffic = Bytes(1000);
  }
  trace.ops[3].slots[0].flops = 5000;
  trace.Validate();
  return trace;
}

TEST(OtherBatchTest, OnlyWhatComesFromTheDataScales) {
  const Trace one = Recorded();
  const Trace twice = ScaledToBatch(one, 8);
  EXPECT_EQ(twice.name, "small:8");
  std::vector<std::string> scaled;
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    if (twice.tensors[i].size == one.tensors[i].size) continue;
    EXPECT_EQ(twice.tensors[i].size, 2 * one.tensors[i].size);
    scaled.push_back(one.tensors[i].name);
  }
  EXPECT_THAT(scaled, ::testing::ElementsAre("ids", "h", "y", "dx"));
  EXPECT_EQ(twice.tensors[2].shape, (std::vector<int64_t>{8, 6, 8}));
  EXPECT_EQ(twice.tensors[8].shape, (std::vector<int64_t>{48, 8}));
  EXPECT_EQ(twice.recording->step, Duration());
  EXPECT_EQ(twice.recording->reserved, Bytes());
}

TEST(OtherBatchTest, TimesFollowTheWork) {
  const Trace one = Recorded();
  const Trace twice = ScaledToBatch(one, 8);
  const auto cost = [&](size_t op) { return *twice.ops[op].recorded; };
  EXPECT_EQ(cost(3).time, Duration::Microseconds(16));  // operations
  EXPECT_EQ(twice.ops[3].slots[0].flops, 10000);
  EXPECT_EQ(cost(3).workspace, Bytes(80));
  EXPECT_EQ(cost(3).gap, Duration::Microseconds(1));
  EXPECT_EQ(cost(3).host, Duration::Microseconds(2));
  for (const size_t op : {1, 2, 6, 8}) EXPECT_EQ(cost(op), *one.ops[op].recorded) << op;
  // The operands of the embedding are 96 bytes of ids, 768 of h and 3200 of the table: 21.3 %
  // depend on the batch.
  EXPECT_EQ(twice.ops[0].slots[0].traffic, Bytes(1213));
  EXPECT_GT(cost(0).time, Duration::Microseconds(9));
  EXPECT_LT(cost(0).time, Duration::Microseconds(10));
}

TEST(OtherBatchTest, AttributesThatCountSamplesScale) {
  Trace one = Recorded();
  one.ops[0].attributes = {{"elements", 800}, {"row", 8}, {"indices", 24}};  // the table's
  one.ops[3].attributes = {{"batches", 1}, {"rows", 24}, {"columns", 8}, {"depth", 8}};
  one.ops[4].attributes = {{"batches", 1}, {"rows", 8}, {"columns", 8}, {"depth", 24}};
  one.ops[5].attributes = {{"batches", 16}, {"rows", 12}, {"columns", 8}, {"depth", 8}};
  one.ops[8].attributes = {{"elements", 64}};
  const Trace twice = ScaledToBatch(one, 8);
  const auto values = [&](size_t op) {
    std::vector<double> all;
    for (const Attribute& attribute : twice.ops[op].attributes) all.push_back(attribute.value);
    return all;
  };
  EXPECT_THAT(values(0), ::testing::ElementsAre(800, 8, 48));
  EXPECT_THAT(values(3), ::testing::ElementsAre(1, 48, 8, 8));
  EXPECT_THAT(values(4), ::testing::ElementsAre(1, 8, 8, 48));
  EXPECT_THAT(values(5), ::testing::ElementsAre(32, 12, 8, 8));
  EXPECT_THAT(values(8), ::testing::ElementsAre(64));
}

TEST(OtherBatchTest, BetweenTwoRecordingsEverythingIsOnALine) {
  const Trace four = Recorded();
  Trace eight = ScaledToBatch(four, 8);
  eight.ops[1].recorded->time = Duration::Microseconds(10);  // 8 at a batch of 4
  eight.tensors[3].size = 3 * four.tensors[3].size;
  eight.ops[0].recorded->workspace = Bytes();  // 40
  const auto six = InterpolatedToBatch(four, eight, 6);
  ASSERT_TRUE(six);
  EXPECT_EQ(six->name, "small:6");
  EXPECT_EQ(six->ops[1].recorded->time, Duration::Microseconds(9));
  EXPECT_EQ(six->tensors[3].size, 2 * four.tensors[3].size);
  EXPECT_EQ(six->ops[0].recorded->workspace, Bytes(20));
  EXPECT_EQ(InterpolatedToBatch(eight, four, 6)->tensors, six->tensors);
  // Beyond both, nothing is below 0.
  EXPECT_EQ(InterpolatedToBatch(four, eight, 16)->ops[0].recorded->workspace, Bytes());
  EXPECT_EQ(InterpolatedToBatch(four, eight, 2)->tensors[3].size, Bytes());
  EXPECT_EQ(InterpolatedToBatch(four, eight, 4)->tensors, four.tensors);
}

TEST(OtherBatchTest, RecordingsOfOtherOpsAreNotInterpolated) {
  const Trace four = Recorded();
  EXPECT_FALSE(InterpolatedToBatch(four, four, 6));
  const auto changed = [&](const std::function<void(Trace&)>& change) {
    Trace eight = ScaledToBatch(four, 8);
    change(eight);
    return InterpolatedToBatch(four, eight, 6).has_value();
  };
  EXPECT_TRUE(changed([](Trace&) {}));
  EXPECT_FALSE(changed([](Trace& trace) { trace.ops.pop_back(); }));
  EXPECT_FALSE(changed([](Trace& trace) { trace.ops[3].name = "bmm"; }));
  EXPECT_FALSE(
      changed([](Trace& trace) { std::swap(trace.ops[3].inputs[0], trace.ops[3].inputs[1]); }));
  EXPECT_FALSE(changed([](Trace& trace) { trace.recording->device = "another GPU"; }));
  // A name of its own does not make it another program, but other parameters do.
  EXPECT_TRUE(changed([](Trace& trace) { trace.network = "another"; }));
  EXPECT_FALSE(changed([](Trace& trace) {
    trace.network = "another";
    for (const Op& op : trace.ops) {
      if (op.phase != Phase::kUpdate) continue;
      for (const TensorId id : op.outputs) ++trace.tensors[Index(id)].shape[0];
    }
  }));
}

// Returns the recorded step with sequences of `tokens` tokens, and with a tensor of scores of each
// token for each.
Trace OfLength(int64_t tokens) {
  Trace trace = Recorded();
  for (Tensor& tensor : trace.tensors) {
    for (int64_t& extent : tensor.shape) {
      if (extent == 6 || extent == 24) extent = extent / 6 * tokens;
    }
  }
  trace.tensors[3].shape = {tokens, tokens};
  for (Tensor& tensor : trace.tensors) {
    tensor.size = Bytes(4);
    for (const int64_t extent : tensor.shape) tensor.size = tensor.size * extent;
  }
  trace.ops[1].slots[0].flops = 7 * tokens + 2 * tokens * tokens;
  trace.ops[1].attributes = {{"elements", static_cast<double>(tokens * tokens)}, {"row", 8}};
  trace.ops[3].recorded->time = Duration::Microseconds(100 + tokens);
  trace.Validate();
  return trace;
}

StepFamily FamilyOf(StepQuantity quantity, Trace one, Trace other) {
  return {quantity, std::make_shared<const Trace>(std::move(one)), "one.json",
          std::make_shared<const Trace>(std::move(other)), "other.json"};
}

TEST(OtherBatchTest, BetweenTwoLengthsShapesAndSquaresAreExact) {
  const StepFamily family = FamilyOf(StepQuantity::kLength, OfLength(6), OfLength(10));
  EXPECT_EQ(family.value(), 6);
  for (const int64_t length : {1, 6, 8, 10, 40}) {
    const BatchTrace at = family.At(length);
    const Trace expected = OfLength(length);
    EXPECT_EQ(at.trace->tensors, expected.tensors) << length;
    EXPECT_EQ(at.trace->ops, expected.ops) << length;
    EXPECT_EQ(at.source, length == 6 ? BatchSource::kGiven : BatchSource::kInterpolated);
    EXPECT_EQ(at.trace->batch, 4);
  }
}

TEST(OtherBatchTest, AFamilyVariesInOneQuantity) {
  const auto message = [](StepQuantity quantity, Trace one, Trace other) -> std::string {
    try {
      FamilyOf(quantity, std::move(one), std::move(other));
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  using ::testing::HasSubstr;
  const Trace four = OfLength(6), longer = OfLength(10);
  const Trace eight = ScaledToBatch(four, 8), both = ScaledToBatch(longer, 8);
  EXPECT_EQ(message(StepQuantity::kBatch, four, eight), "");
  EXPECT_EQ(message(StepQuantity::kLength, four, longer), "");
  EXPECT_THAT(message(StepQuantity::kBatch, four, longer), HasSubstr("have the same batch of 4"));
  EXPECT_THAT(message(StepQuantity::kLength, four, four), HasSubstr("have the same length"));
  EXPECT_THAT(message(StepQuantity::kLength, four, eight),
              HasSubstr("the batch, which is 4 and 8"));
  EXPECT_THAT(message(StepQuantity::kBatch, four, both),
              HasSubstr("not only in the batch (4 and 8), but also in an extent of their data (6 "
                        "and 10)"));
  Trace other = longer;
  other.ops[3].name = "bmm";
  EXPECT_THAT(message(StepQuantity::kLength, four, other), HasSubstr("op 3 is 'mm' and 'bmm'"));
  EXPECT_THROW(StepFamily(StepQuantity::kLength, std::make_shared<const Trace>(four), "one.json"),
               UsageError);
}

TEST(OtherBatchTest, TheMostExactWayIsTaken) {
  const auto shared = [](Trace trace) { return std::make_shared<const Trace>(std::move(trace)); };
  const auto zoo = shared(Lowered("alexnet", 4));
  EXPECT_EQ(AtBatch(zoo, {}, 4).source, BatchSource::kGiven);
  const BatchTrace lowered = AtBatch(zoo, {}, 8);
  EXPECT_EQ(lowered.source, BatchSource::kLowered);
  EXPECT_EQ(*lowered.trace, Lowered("alexnet", 8));
  Trace edited = *zoo;
  edited.tensors[0].name = "another";
  EXPECT_EQ(AtBatch(shared(edited), {}, 8).source, BatchSource::kScaled);
  const auto four = shared(Recorded());
  const std::vector<std::shared_ptr<const Trace>> both{zoo, four, shared(ScaledToBatch(*four, 8))};
  EXPECT_EQ(AtBatch(four, {}, 6).source, BatchSource::kScaled);
  EXPECT_EQ(AtBatch(four, both, 6).source, BatchSource::kInterpolated);
}

}  // namespace
}  // namespace spillway::testing
