// Tests of the transformers of the zoo and of their lowering.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/files.h"
#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int64_t Elements(const Trace& trace, TensorKind kind, std::string_view prefix = {}) {
  int64_t elements = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.kind != kind || !tensor.name.starts_with(prefix)) continue;
    elements += tensor.size.count() / ElementSize(tensor.dtype);
  }
  return elements;
}

int64_t Parameters(std::string_view name, std::string_view prefix = {}) {
  const Network network = BuildNetwork(name);
  return Elements(LowerNetwork(network, {1, "torch", false}), TensorKind::kParameter, prefix);
}

const Tensor& FindTensor(const Trace& trace, std::string_view name) {
  const auto found = std::ranges::find(trace.tensors, name, &Tensor::name);
  EXPECT_NE(found, trace.tensors.end()) << name;
  return *found;
}

std::vector<std::string> NamesOf(const Trace& trace, const std::vector<TensorId>& ids) {
  std::vector<std::string> names;
  for (const TensorId id : ids) names.push_back(trace.tensor(id).name);
  return names;
}

// The counts that the models' publishers give.
TEST(TransformerTest, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(Parameters("gpt2"), 124'439'808);
  EXPECT_EQ(Parameters("gpt2-medium"), 354'823'168);
  EXPECT_EQ(Parameters("gpt2-large"), 774'030'080);
  EXPECT_EQ(Parameters("gpt2-xl"), 1'557'611'200);
  EXPECT_EQ(Parameters("gpt2@64"), 124'439'808);
  EXPECT_EQ(Parameters("bert-base"), 109'514'298);
  EXPECT_EQ(Parameters("bert-base") - Parameters("bert-base", "head."), 108'891'648);  // encoder
  EXPECT_EQ(Parameters("bert-large") - Parameters("bert-large", "head."), 334'092'288);
  EXPECT_EQ(Parameters("vit-b16"), 86'567'656);
  EXPECT_EQ(Parameters("vit-l16"), 304'326'632);
  EXPECT_EQ(Parameters("llama-1b"), 1'235'814'400);
  EXPECT_EQ(Parameters("llama-8b"), 8'030'261'248);
  EXPECT_EQ(Parameters("llama(4096,32,32,8,14336,128256)"), 8'030'261'248);
  // A longer sequence needs a longer table of positions.
  EXPECT_EQ(Parameters("gpt2@1030"), 124'439'808 + 6 * 768);
  EXPECT_EQ(Parameters("gpt(8,1,2,5)@3"),
            5 * 8 + 3 * 8 + 4 * (64 + 8) + (32 * 8 + 32) + (32 * 8 + 8) + 6 * 8);
}

TEST(TransformerTest, FusedAttentionKeepsOperandsAndSums) {
  const Trace trace = LowerNetwork(BuildNetwork("gpt(8,1,2,11)@7"), {3, "torch", true});
  const Op& forward = FindOp(trace, "h0.attn.fwd");
  EXPECT_THAT(NamesOf(trace, forward.inputs),
              ElementsAre("h0.attn.q.y", "h0.attn.k.y", "h0.attn.v.y"));
  EXPECT_THAT(NamesOf(trace, forward.outputs), ElementsAre("h0.attn.y", "h0.attn.log_sum_exp"));
  EXPECT_THAT(FindTensor(trace, "h0.attn.log_sum_exp").shape, ElementsAre(3, 2, 7));
  const Op& backward = FindOp(trace, "h0.attn.bwd");
  EXPECT_THAT(NamesOf(trace, backward.inputs),
              ElementsAre("h0.attn.q.y", "h0.attn.k.y", "h0.attn.v.y", "h0.attn.y", "h0.attn.dy",
                          "h0.attn.log_sum_exp"));
  EXPECT_THAT(NamesOf(trace, backward.outputs),
              ElementsAre("h0.attn.q.dy", "h0.attn.k.dy", "h0.attn.v.dy"));
  // Causal attention has 7 * 8 / 2 pairs of positions in each of 2 heads; a pair takes two products
  // of 4 features in forward, five in backward.
  EXPECT_EQ(forward.flops(), 3 * 2 * 28 * 2 * 2 * 4);
  EXPECT_EQ(backward.flops(), 3 * 2 * 28 * 5 * 2 * 4);
}

TEST(TransformerTest, MathAttentionKeepsProbabilities) {
  const Trace trace = LowerNetwork(testing::Gpt(), {3, "torch", true});
  EXPECT_THAT(FindTensor(trace, "h0.attn.scores.y").shape, ElementsAre(3, 2, 7, 7));
  EXPECT_THAT(NamesOf(trace, FindOp(trace, "h0.attn.softmax.bwd").inputs),
              ElementsAre("h0.attn.softmax.y", "h0.attn.softmax.dy"));
  EXPECT_THAT(NamesOf(trace, FindOp(trace, "h0.attn.values.bwd").inputs),
              ElementsAre("h0.attn.softmax.y", "h0.attn.v.y", "h0.attn.values.dy"));
  EXPECT_EQ(FindOp(trace, "h0.attn.scores.fwd").flops(), 3 * 2 * 49 * 2 * 4);
}

TEST(TransformerTest, ATiedWeightHasOneGradientAndOneUpdate) {
  const Trace trace = LowerNetwork(testing::Gpt(), {3, "torch", true});
  EXPECT_THAT(NamesOf(trace, FindOp(trace, "lm_head.fwd").inputs),
              ElementsAre("ln_f.y", "wte.weight"));
  const Op& head = FindOp(trace, "lm_head.bwd");
  EXPECT_THAT(NamesOf(trace, head.outputs), ElementsAre("ln_f.dy", "wte.dweight"));
  EXPECT_FALSE(head.Accumulates(1));
  const Op& embedding = FindOp(trace, "wte.bwd");
  EXPECT_THAT(NamesOf(trace, embedding.inputs), ElementsAre("data.y", "wte.dy", "wte.dweight"));
  EXPECT_THAT(NamesOf(trace, embedding.outputs), ElementsAre("wte.dweight"));
  EXPECT_TRUE(embedding.Accumulates(0));
  EXPECT_EQ(std::ranges::count(trace.ops, "lm_head.update", &Op::name), 0);
  EXPECT_THAT(NamesOf(trace, FindOp(trace, "wte.update").outputs),
              ElementsAre("wte.weight", "wte.weight_momentum"));
  // The bias of a tied layer has an update of its own.
  const Trace bert = LowerNetwork(BuildBert("bert", 3, {4, 1, 2, 5, 3}, AttentionKind::kFused),
                                  {1, "torch", true});
  EXPECT_THAT(NamesOf(bert, FindOp(bert, "head.words.update").outputs),
              ElementsAre("head.words.bias", "head.words.bias_momentum"));
  // With fused updates, each of the two layers updates the weight.
  const Trace fused = LowerNetwork(testing::Gpt(), {3, "vdnn", true});
  EXPECT_THAT(NamesOf(fused, FindOp(fused, "wte.bwd").outputs), ElementsAre("wte.weight"));
  EXPECT_FALSE(FindOp(fused, "wte.bwd").Accumulates(0));
}

TEST(TransformerTest, AnEmbeddingReadsRowsOnly) {
  const Trace trace = LowerNetwork(BuildNetwork("gpt(8,1,2,1000)@5"), {2, "torch", true});
  const Op& op = FindOp(trace, "wte.fwd");
  EXPECT_EQ(op.traffic(), Bytes(2 * 5 * 4 + 2 * (2 * 5 * 8 * 4)));
  EXPECT_EQ(FindTensor(trace, "data.y").dtype, DataType::kInt32);
  EXPECT_THAT(FindTensor(trace, "labels").shape, ElementsAre(2, 5));
}

TEST(TransformerTest, InferenceIsForwardWithoutStatistics) {
  for (const auto network : {testing::Gpt, testing::Llama, testing::Vit}) {
    const Trace trace = LowerNetwork(network(), {2, "torch", false});
    for (const Op& op : trace.ops) EXPECT_EQ(op.phase, Phase::kForward) << op.name;
    for (const Tensor& tensor : trace.tensors) {
      EXPECT_FALSE(tensor.name.ends_with("inv_std") || tensor.name.ends_with("log_sum_exp"))
          << tensor.name;
    }
  }
}

TEST(TransformerTest, ImpossibleHeadsAreRefusedByName) {
  const auto error = [](std::string_view name) {
    return testing::InputErrorOf([&] { BuildNetwork(name); });
  };
  EXPECT_THAT(error("gpt(10,1,3,5)"),
              HasSubstr("layer 'h0.attn': a width of 10 does not divide into 3 heads"));
  EXPECT_THAT(error("gpt(4,1,8,5)"), HasSubstr("width of 4 does not divide into 8 heads"));
  EXPECT_THAT(error("llama(8,1,3,1,8,5)"), HasSubstr("width of 8 does not divide into 3 heads"));
  EXPECT_THAT(error("llama(12,1,6,4,8,5)"), HasSubstr("6 heads do not divide into 4 groups"));
  EXPECT_THAT(error("llama(6,1,2,1,8,5)"), HasSubstr("heads of 3 features have no pairs"));
  EXPECT_THAT(error("vit-b16@15"), HasSubstr("layer 'patches'"));
}

TEST(TransformerTest, WrongNamesAreUsageErrors) {
  for (const char* name :
       {"gpt", "gpt()", "gpt(8,1,2)", "gpt(8,1,2,5,6)", "gpt(8,0,2,5)", "gpt(8,1,2,5",
        "gpt(8,1,2,5,dropout=1)", "gpt(8,1,2,5,dropout=)", "gpt(8,1,2,x)", "gpt(8,10001,2,5)",
        "gpt(2000000,1,2,5)", "llama(8,1,2,1,5)", "gpt2@0", "gpt2@1048577", "gpt(8,1,2,5)@",
        "vit-b16@4097", "gpt-2", "bert", "llama"}) {
    EXPECT_THROW(BuildNetwork(name), UsageError) << name;
  }
  try {
    BuildNetwork("bert");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("built in are bert-base, bert-large"));
  }
}

// Sizes beyond those of a trace are an error, not an overflow.
TEST(TransformerTest, ATooLargeNetworkIsRefused) {
  const Network network =
      BuildNetwork("gpt(1048576,1,1048576,1048576)@1048576", AttentionKind::kMath);
  EXPECT_THAT(testing::InputErrorOf([&] {
                LowerNetwork(network, {65536, "torch", true});
              }),
              HasSubstr("more than 2^56 elements"));
  EXPECT_THROW(LowerNetwork(BuildNetwork("gpt(1048576,10,1,1)@1024"), {65536, "torch", true}),
               InputError);
}

TEST(TransformerTest, OneOfEverything) {
  for (const AttentionKind kind : {AttentionKind::kFused, AttentionKind::kMath}) {
    const Trace trace = LowerNetwork(BuildNetwork("gpt(1,1,1,1)@1", kind), {1, "torch", true});
    EXPECT_THAT(FindTensor(trace, "h0.mlp.add.y").shape, ElementsAre(1, 1, 1));
  }
}

TEST(OptimizerTest, AdamHasTwoMomentsAndAStep) {
  const Network network = testing::Gpt();
  const int64_t parameters =
      Elements(LowerNetwork(network, {1, "torch", true}), TensorKind::kParameter);
  for (const OpType rule : {OpType::kAdam, OpType::kAdamW}) {
    const Trace trace = LowerNetwork(network, {1, "torch", true, rule});
    const auto steps = std::ranges::count_if(
        trace.tensors, [](const Tensor& tensor) { return tensor.name.ends_with("_step"); });
    EXPECT_EQ(Elements(trace, TensorKind::kOptimizerState), 2 * parameters + steps);
    const Op& update = FindOp(trace, "ln_f.update");
    EXPECT_EQ(update.type, rule);
    EXPECT_THAT(
        NamesOf(trace, update.inputs),
        ElementsAre("ln_f.weight", "ln_f.dweight", "ln_f.weight_momentum",
                    "ln_f.weight_second_moment", "ln_f.weight_step", "ln_f.bias", "ln_f.dbias",
                    "ln_f.bias_momentum", "ln_f.bias_second_moment", "ln_f.bias_step"));
    EXPECT_EQ(update.NumberAttribute("weight_decay"), rule == OpType::kAdam ? 0 : 0.01);
  }
  EXPECT_THROW(LowerNetwork(network, {1, "vdnn", true, OpType::kAdam}), UsageError);
  EXPECT_EQ(LowerNetwork(network, {1, "torch", true, OpType::kSgd}),
            LowerNetwork(network, {1, "torch", true}));
}

TEST(MathTest, Bf16HalvesAllButNormsSoftmaxAndLoss) {
  for (const char* preset : {"torch", "vdnn", "vdnnpp", "superneurons"}) {
    const Trace trace =
        LowerNetwork(testing::Gpt(), {2, preset, true, std::nullopt, Precision::kBf16});
    const auto type = [&](const char* name) { return FindTensor(trace, name).dtype; };
    for (const char* name : {"wte.weight", "wte.y", "h0.attn.q.y", "h0.attn.scores.y", "lm_head.y",
                             "h0.attn.q.weight", "h0.mlp.gelu.y", "h0.mlp.add.y"}) {
      EXPECT_EQ(type(name), DataType::kBfloat16) << preset << " " << name;
    }
    for (const char* name : {"h0.ln_1.y", "h0.ln_1.weight", "h0.ln_1.mean", "h0.attn.softmax.y",
                             "loss.y", "loss", "labels"}) {
      EXPECT_EQ(type(name), DataType::kFloat32) << preset << " " << name;
    }
    EXPECT_EQ(type("data.y"), DataType::kInt32);
    EXPECT_EQ(ArithmeticOf(trace), "bf16");
  }
}

TEST(MathTest, SignaturesTellTypesApart) {
  std::map<std::string, std::pair<DataType, DataType>> types;
  for (const Network& network : {testing::Gpt(), testing::Llama()}) {
    const Trace trace = LowerNetwork(network, {2, "torch", true, std::nullopt, Precision::kBf16});
    for (const Op& op : trace.ops) {
      if (op.slots.empty()) continue;
      const std::pair of_op(trace.tensor(op.inputs.front()).dtype,
                            trace.tensor(op.outputs.front()).dtype);
      const auto [seen, added] = types.emplace(op.slots[0].signature, of_op);
      EXPECT_EQ(seen->second, of_op) << op.slots[0].signature;
    }
  }
  for (const char* signature : {"linear.fwd in=8 out=8 bias=1 rows=7 bf16",
                                "linear.fwd in=8 out=8 bias=1 rows=7 bf16 reads=fp32",
                                "layernorm.fwd rows=7 features=8 training=1 bf16 writes=fp32"}) {
    EXPECT_TRUE(types.contains(signature)) << signature;
  }
}

TEST(MathTest, ShortWeightsHaveALongCopyForAdam) {
  const Trace trace =
      LowerNetwork(testing::Gpt(), {2, "torch", true, OpType::kAdamW, Precision::kBf16});
  const Op& update = FindOp(trace, "h0.attn.q.update");
  EXPECT_THAT(NamesOf(trace, {update.inputs.begin(), update.inputs.begin() + 6}),
              ElementsAre("h0.attn.q.weight", "h0.attn.q.dweight", "h0.attn.q.weight_master",
                          "h0.attn.q.weight_momentum", "h0.attn.q.weight_second_moment",
                          "h0.attn.q.weight_step"));
  EXPECT_EQ(FindTensor(trace, "h0.attn.q.weight_master").dtype, DataType::kFloat32);
  EXPECT_EQ(FindTensor(trace, "h0.attn.q.weight_momentum").dtype, DataType::kFloat32);
  EXPECT_FALSE(FindOp(trace, "ln_f.update").Flag("master"));
}

TEST(MathTest, Tf32ChangesTheProductsOnly) {
  const Trace plain = LowerNetwork(testing::Gpt(), {2, "torch", true});
  Trace trace = LowerNetwork(testing::Gpt(), {2, "torch", true, std::nullopt, Precision::kTf32});
  EXPECT_EQ(trace.tensors, plain.tensors);
  EXPECT_EQ(ArithmeticOf(trace), "tf32");
  for (Op& op : trace.ops) {
    for (Slot& slot : op.slots) {
      EXPECT_EQ(slot.signature.ends_with(" tf32"), slot.arithmetic == Arithmetic::kTf32);
      slot.arithmetic = Arithmetic::kFp32;
      if (slot.signature.ends_with(" tf32")) slot.signature.resize(slot.signature.size() - 5);
    }
  }
  EXPECT_EQ(trace.ops, plain.ops);
}

}  // namespace
}  // namespace spillway::testing
