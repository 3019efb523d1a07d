// Tests of the traces with micro-batches, with clipping, and with the loss in chunks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/liveness.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Tensor& Find(const Trace& trace, std::string_view name) {
  return *std::ranges::find(trace.tensors, name, &Tensor::name);
}
const Op& FindOp(const Trace& trace, std::string_view name) {
  return *std::ranges::find(trace.ops, name, &Op::name);
}

std::string ErrorOf(const Network& network, const LoweringOptions& options) {
  try {
    LowerNetwork(network, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a UsageError";
  return {};
}

TEST(AccumulateTest, MicroBatchesHaveLayersOfTheirOwnAndOneUpdate) {
  const Trace one = LowerNetwork(testing::Gpt(), {.batch = 2});
  const Trace three = LowerNetwork(testing::Gpt(), {.batch = 2, .accumulate = 3});
  EXPECT_EQ(three.batch, 6);
  EXPECT_EQ(three.name, one.name);
  const auto count = [](const Trace& trace, Phase phase) {
    return std::ranges::count(trace.ops, phase, &Op::phase);
  };
  EXPECT_EQ(count(three, Phase::kForward), 3 * count(one, Phase::kForward));
  EXPECT_EQ(count(three, Phase::kBackward), 3 * count(one, Phase::kBackward));
  EXPECT_EQ(count(three, Phase::kUpdate), count(one, Phase::kUpdate));
  EXPECT_EQ(FindOp(three, "h0.mlp.fc#2.fwd").slots, FindOp(one, "h0.mlp.fc.fwd").slots);

  const Tensor& second = Find(three, "labels#2");
  EXPECT_EQ(&three.tensor(second.part_of.value()), &Find(three, "labels"));
  EXPECT_EQ(second.offset, second.size);
  EXPECT_THAT(Find(three, "labels").shape, ElementsAre(6, 7));

  // The first micro-batch writes the gradients of the parameters, the others add to them.
  EXPECT_EQ(FindOp(three, "h0.mlp.fc#1.bwd").IntAttribute("accumulate"), 0);
  EXPECT_EQ(FindOp(three, "h0.mlp.fc#2.bwd").IntAttribute("accumulate"), 0b110);
  // The weight of the embedding is that of the last layer, too, which adds nothing to dx.
  EXPECT_EQ(FindOp(three, "lm_head#1.bwd").IntAttribute("accumulate"), 0);
  EXPECT_EQ(FindOp(three, "lm_head#3.bwd").IntAttribute("accumulate"), 0b10);
  EXPECT_EQ(FindOp(three, "loss#3.fwd").IntAttribute("mean_over"), 2 * 3 * 7);
}

// Activations of a micro-batch are dead before those of the next exist.
TEST(AccumulateTest, OneMicroBatchIsAliveAtATime) {
  const Trace trace = LowerNetwork(testing::Chain(), {.batch = 2, .accumulate = 4});
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const TensorKind kind = trace.tensors[i].kind;
    if (kind != TensorKind::kActivation && kind != TensorKind::kGradient) continue;
    const auto layer_of = [&](OpId op) {
      const std::string& name = trace.op(op).name;
      return name.substr(name.find('#'), 2);
    };
    const auto uses = liveness.Uses(trace.Root(id));
    EXPECT_EQ(layer_of(uses.front()), layer_of(uses.back())) << trace.tensors[i].name;
  }
}

TEST(ClipTest, AnOpForEachParameterAddsUpAndAnotherScales) {
  const Trace plain = LowerNetwork(testing::Gpt(), {.batch = 2});
  const Trace trace = LowerNetwork(testing::Gpt(), {.batch = 2, .clip_norm = 0.5});
  const auto parameters = std::ranges::count(trace.tensors, TensorKind::kParameter, &Tensor::kind);
  EXPECT_EQ(trace.ops.size(), plain.ops.size() + 2 * static_cast<size_t>(parameters));
  const Op& scale = FindOp(trace, "ln_f.bias.clip");
  EXPECT_EQ(scale.inputs.front(), scale.outputs.front());
  EXPECT_EQ(scale.NumberAttribute("max_norm"), 0.5);
  EXPECT_EQ((&scale)[1].name, "ln_f.update");
  // All gradients live until the last one is added to the sum.
  const Liveness liveness(trace);
  const auto last = std::ranges::find_if(trace.ops.rbegin(), trace.ops.rend(), [](const Op& op) {
    return op.type == OpType::kSquareSum;
  });
  const auto known = static_cast<OpId>(trace.ops.rend() - last - 1);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (trace.tensors[i].kind != TensorKind::kParameterGradient) continue;
    EXPECT_GT(liveness.Uses(static_cast<TensorId>(i)).back(), known) << trace.tensors[i].name;
  }
}

// Two of three chunks have 5 tokens, one has 4.
TEST(LossChunksTest, LogitsOfOneChunkAreAliveAtATime) {
  const Trace trace = LowerNetwork(testing::Gpt(), {.batch = 2, .loss_chunks = 3});
  std::vector<int64_t> tokens;
  const Liveness liveness(trace);
  for (const int chunk : {1, 2, 3}) {
    const std::string number = ".chunk" + std::to_string(chunk);
    const Op& head = FindOp(trace, "lm_head" + number + ".fwd");
    tokens.push_back(head.batch);
    EXPECT_THAT(Find(trace, "lm_head" + number + ".y").shape, ElementsAre(head.batch, 1, 11));
    const Tensor& x = trace.tensor(head.inputs.front());
    EXPECT_EQ(x.name, "ln_f.y" + number);
    EXPECT_EQ(&trace.tensor(x.alias_of.value()), &Find(trace, "ln_f.y"));
    const auto& next = [&](int step) -> const std::string& { return (&head)[step].name; };
    EXPECT_EQ(next(1), "loss" + number + ".fwd");
    EXPECT_EQ(next(2), "loss" + number + ".bwd");
    EXPECT_EQ(next(3), "lm_head" + number + ".bwd");
    EXPECT_EQ((&head)[1].IntAttribute("mean_over"), 14);
    EXPECT_EQ((&head)[3].IntAttribute("accumulate"), chunk == 1 ? 0 : 0b10);
  }
  EXPECT_THAT(tokens, ElementsAre(4, 5, 5));
}

TEST(TrainingOptionsTest, OneOfEachChangesNothing) {
  for (const Network& network : {testing::Gpt(), testing::Residual()}) {
    EXPECT_EQ(LowerNetwork(network, {.batch = 2, .accumulate = 1, .loss_chunks = 1}),
              LowerNetwork(network, {.batch = 2}));
  }
}

TEST(TrainingOptionsTest, ImpossibleOptionsAreRefusedByName) {
  const Network gpt = testing::Gpt();
  EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .accumulate = 0}),
              HasSubstr("accumulate is 0, expected at least 1 micro-batch"));
  EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .clip_norm = 0}), HasSubstr("clip-norm is 0"));
  EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .loss_chunks = 15}),
              HasSubstr("loss-chunks is 15, but a batch of 2 with 7 tokens each has 14; expected 1 "
                        "to 14 chunks"));
  EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .loss_chunks = 0}), HasSubstr("loss-chunks is 0"));
  for (const Network& network : {testing::Chain(), testing::Vit()}) {
    EXPECT_THAT(ErrorOf(network, {.batch = 2, .loss_chunks = 2}),
                HasSubstr("'" + network.name() + "' has no loss of each token"));
  }
  for (const char* preset : {"vdnn", "vdnnpp"}) {
    EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .preset = preset, .accumulate = 2}),
                HasSubstr("accumulate: the preset '" + std::string(preset) + "' updates"));
  }
  EXPECT_THAT(ErrorOf(gpt, {.batch = 2, .training = false, .clip_norm = 1}),
              HasSubstr("clip-norm: the option is for training, not for inference"));
}

}  // namespace
}  // namespace spillway::testing
