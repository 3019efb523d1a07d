#include "experiments/changes/other_sharding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

struct Change {
  std::string block = "h.{}/";        // the prefix of layers of a block
  std::string last_layer = "sum.9";   // its layer
  std::string first_backward = "p1";  // what the first op of backward reads
  bool is_held = true;                // autograd holds the parameters until backward
};

// A process of 4 that trains two blocks, each with a shard w of a weight, which stays after
// forward:
//
//   forward   h.0/copy.0:   w0 [8] -> c0 [8]     on lane 1
//             h.0/gather.1: c0 -> g0 [32]        on lane 3, behind copy
//             h.0/out.2:    g0 -> p0 [32]        behind gather
//             h.0/use.3:    p0, x -> y0 [4]
//             h.0/relu.4:   y0 -> z0 [4]
//             h.1/...:      the same of z0
//             sum.9:        z1 -> l
//   backward  h.1/use.3.bwd: l, p1[0:16] -> d1 [4]
//             h.0/use.3.bwd: d1, p0[0:16] -> d0 [4]
Trace Step(const Change& change = {}) {
  testing::TraceBuilder builder;
  std::vector<std::pair<std::string, int64_t>> sizes;
  const auto tensor = [&](const std::string& name, TensorKind kind, int64_t elements,
                          const std::string& alias_of = "") {
    builder.Tensor(name, kind, 4 * elements, alias_of);
    sizes.emplace_back(name, elements);
  };
  using enum TensorKind;
  for (const char* block : {"0", "1"}) {
    tensor(std::string("w") + block, kParameter, 8);
    for (const auto& [name, elements] :
         {std::pair("c", 8), {"g", 32}, {"p", 32}, {"y", 4}, {"z", 4}}) {
      tensor(name + std::string(block), kActivation, elements);
    }
    tensor(std::string("v") + block, kActivation, 16, std::string("p") + block);
    tensor(std::string("d") + block, kGradient, 4);
  }
  tensor("x", kInput, 4);
  tensor("l", kActivation, 1);
  std::string before = "x";
  for (const std::string block : {"0", "1"}) {
    const auto add = [&](const std::string& name, std::initializer_list<std::string> inputs,
                         const std::string& output) {
      builder.Op(fmt::format("h.{}/{}", block, name), Phase::kForward, inputs, {output},
                 OpType::kOther, fmt::format(fmt::runtime(change.block), block) + name);
    };
    add("copy.0", {"w" + block}, "c" + block);
    add("gather.1", {"c" + block}, "g" + block);
    add("out.2", {"g" + block}, "p" + block);
    add("use.3", {"p" + block, before}, "y" + block);
    add("relu.4", {"y" + block}, "z" + block);
    before = "z" + block;
  }
  builder.Op("sum.9", Phase::kForward, {"z1"}, {"l"}, OpType::kOther, change.last_layer);
  builder.Op("h.1/use.3.bwd", Phase::kBackward, {"l", "v1", change.first_backward}, {"d1"},
             OpType::kOther, fmt::format(fmt::runtime(change.block), 1) + "use.3");
  if (change.is_held) {
    builder.Op("h.0/use.3.bwd", Phase::kBackward, {"d1", "v0"}, {"d0"}, OpType::kOther,
               fmt::format(fmt::runtime(change.block), 0) + "use.3");
  }
  Trace trace = builder.Build();
  for (auto& [name, elements] : sizes) trace.tensors[Index(builder.Id(name))].shape = {elements};
  trace.recording = {"PyTorch", "", {}, {}, {}, {}};
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    Op& op = trace.ops[i];
    op.recorded = {{}, {}, Duration::Microseconds(60), {}};
    if (op.name.ends_with("copy.0")) {
      op.lane = 1;
      op.slots[0].signature = "fsdp::all_gather_copy_in 8";
      op.attributes = {{"operators", 60}, {"tensors", 1}};
    }
    if (op.name.ends_with("gather.1")) {
      op.lane = 3;
      op.slots[0].signature = "all_gather 8";
      op.attributes = {{"bytes", 128}, {"ranks", 4}, {"stride", 1}};
    }
    if (op.name.ends_with("gather.1") || op.name.ends_with("out.2")) {
      op.after = {static_cast<OpId>(i - 1)};
    }
  }
  for (Tensor& one : trace.tensors) {
    const auto last = static_cast<OpId>(trace.ops.size() - 1);
    if (change.is_held && (one.name == "p0" || one.name == "p1")) one.held_until = last;
  }
  trace.Validate();
  return trace;
}

std::string NameOf(const Trace& trace, OpId op) { return trace.op(op).name; }

TEST(OtherShardingTest, BackwardGathersAgainWhatForwardFreed) {
  std::string why_not;
  const std::optional<Trace> made = WithReshardAfterForward(Step(), why_not);
  ASSERT_TRUE(made) << why_not;
  std::string backward;
  for (const Op& op : made->ops) {
    if (op.phase != Phase::kBackward) continue;
    backward += op.name + " <-";
    for (const TensorId id : op.inputs) backward += " " + made->tensor(id).name;
    for (const OpId other : op.after) backward += " after " + NameOf(*made, other);
    backward += "\n";
  }
  EXPECT_EQ(backward,
            "h.1/copy.0.again <- w1 after h.1/out.2\n"
            "h.1/gather.1.again <- c1.again after h.1/out.2 after h.1/copy.0.again\n"
            "h.1/out.2.again <- g1.again after h.1/gather.1.again\n"
            "h.0/copy.0.again <- w0 after h.1/out.2.again\n"
            "h.0/gather.1.again <- c0.again after h.1/out.2.again after h.0/copy.0.again\n"
            "h.1/use.3.bwd <- l v1.again p1.again\n"
            "h.0/out.2.again <- g0.again after h.0/gather.1.again\n"
            "h.0/use.3.bwd <- d1 v0.again\n");
  const auto of = [&](const std::string& name) {
    return *std::ranges::find(made->tensors, name, &Tensor::name);
  };
  EXPECT_EQ(NameOf(*made, *of("p0").held_until), "h.0/relu.4");
  EXPECT_EQ(NameOf(*made, *of("p0.again").held_until), "h.0/use.3.bwd");
  EXPECT_EQ(made->tensor(*of("v0.again").alias_of).name, "p0.again");
  // The host does the work of a module and of a parameter.
  for (const Op& op : made->ops) {
    if (!op.name.ends_with("copy.0.again")) continue;
    EXPECT_EQ(op.FindAttribute("operators"), 30);
    EXPECT_EQ(op.recorded->host, Duration::Microseconds(30));
  }
  EXPECT_FALSE(WithReshardAfterForward(*made, why_not));  // backward gathers
  EXPECT_EQ(why_not, "");
}

TEST(OtherShardingTest, StepsThatCannotBeChangedAreNamed) {
  const auto why_not = [](const Change& change) {
    std::string text;
    EXPECT_FALSE(WithReshardAfterForward(Step(change), text));
    return text;
  };
  EXPECT_EQ(why_not({.block = ""}),
            "the recording does not name the modules; record it with model=...");
  EXPECT_EQ(why_not({.last_layer = "h.0/sum.9"}), "module 'h.0' runs more than once in forward");
  EXPECT_EQ(why_not({.first_backward = "p0"}), "'h.1/use.3.bwd' uses parameters of module 'h.0'");
  EXPECT_EQ(why_not({.is_held = false}),
            "'h.0/out.2' copies shards of another dimension of parameters than the first");
  std::string text;
  EXPECT_FALSE(WithReshardAfterForward(testing::ChainTrace(), text));  // of one process
  EXPECT_EQ(text, "");
}

// A process of 4 of 2 replicas that gathers w [8] in bf16 and reduces the gradient d in fp32:
//
//   forward   gather:  w -> p [32] bf16
//   backward  grad:    p -> d [32] bf16
//             cat:     d -> s [32] fp32
//             scatter: s -> r [8] fp32        on lane 2
//             reduce:  r -> r                 among replicas, on lane 4
//             more:    r -> e [8] bf16        if `cast` says so, on lane 4
//   update    step:    w, r or e -> w, behind reduce or more
Trace Reduction(bool cast, DataType of_gradient = DataType::kBfloat16,
                const std::string& between = "d") {
  testing::TraceBuilder builder;
  using enum TensorKind;
  builder.Tensor("w", kParameter, 32).Tensor("p", kActivation, 64);
  builder.Tensor("d", kGradient, of_gradient == DataType::kBfloat16 ? 64 : 128);
  builder.Tensor("s", kGradient, 128).Tensor("x", kGradient, 4);
  builder.Tensor("r", cast ? kGradient : kParameterGradient, 32);
  builder.Tensor("e", kParameterGradient, 16);
  const std::string gradient = cast ? "e" : "r";
  builder.Op("gather", Phase::kForward, {"w"}, {"p"});
  builder.Op("grad", Phase::kBackward, {"p"}, {"d"});
  builder.Op("cat", Phase::kBackward, {"d"}, {"s"});
  builder.Op("scatter", Phase::kBackward, {"s"}, {"r"});
  builder.Op("reduce", Phase::kBackward, {"r"}, {"r"});
  if (cast) builder.Op("more", Phase::kBackward, {"r"}, {"e"});
  builder.Op("between", Phase::kBackward, {between}, {"x"});
  builder.Op("step", Phase::kUpdate, {"w", gradient}, {"w"});
  Trace trace = builder.Build();
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"w", {8}}, {"p", {32}}, {"d", {32}}, {"s", {32}}, {"r", {8}}, {"e", {8}}};
  for (const auto& [name, shape] : shapes) trace.tensors[Index(builder.Id(name))].shape = shape;
  for (const char* name : {"p", "d", "e"}) {
    trace.tensors[Index(builder.Id(name))].dtype = DataType::kBfloat16;
  }
  trace.tensors[Index(builder.Id("d"))].dtype = of_gradient;
  trace.tensors[Index(builder.Id("r"))].lane = 2;
  trace.recording = {"PyTorch", "", {}, {}, {}, {}};
  const std::map<std::string, std::string> signatures = {{"gather", "all_gather 8"},
                                                         {"cat", "fsdp::chunk_cat 32"},
                                                         {"scatter", "reduce_scatter 8"},
                                                         {"reduce", "all_reduce 8"},
                                                         {"more", "aten::_to_copy 8"}};
  for (Op& op : trace.ops) {
    op.recorded = RecordedCost();
    const auto signature = signatures.find(op.name);
    if (signature != signatures.end()) op.slots[0].signature = signature->second;
    const bool outer = op.name == "reduce";
    if (op.name == "cat") op.slots[0].traffic = Bytes(64 + 2 * 128);
    if (op.name == "gather" || op.name == "scatter" || outer) {
      op.attributes = {{"bytes", op.name == "scatter" ? 128.0 : 32.0},
                       {"ranks", outer ? 2.0 : 4.0},
                       {"stride", outer ? 4.0 : 1.0}};
    }
    if (op.name == "scatter") op.lane = 2;
    if (outer || op.name == "more") op.lane = 4;
  }
  trace.ops.back().after = {static_cast<OpId>(cast ? 5 : 4)};
  trace.Validate();
  return trace;
}

std::string TextOf(const Trace& trace, Phase but) {
  std::string text;
  for (const Op& op : trace.ops) {
    if (op.phase == but) continue;
    text += op.name + ":";
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) {
        text += fmt::format(" {} {}", trace.tensor(id).name, trace.tensor(id).size.count());
      }
      if (operands == &op.inputs) text += " ->";
    }
    for (const OpId other : op.after) text += " after " + NameOf(trace, other);
    text += "\n";
  }
  return text;
}

TEST(OtherShardingTest, GradientsAreCastBehindTheirReduction) {
  std::string why_not;
  const std::optional<Trace> made = WithBfloat16Reduction(Reduction(false), {}, why_not);
  ASSERT_TRUE(made) << why_not;
  EXPECT_EQ(TextOf(*made, Phase::kForward),
            "grad: p 64 -> d 64\n"
            "cat: d 64 -> s 64\n"
            "scatter: s 64 -> r.bfloat16 16\n"
            "reduce: r.bfloat16 16 -> r.bfloat16 16\n"
            "r.to: r.bfloat16 16 -> r 32\n"
            "between: d 64 -> x 4\n"
            "step: w 32 r 32 -> w 32 after r.to\n");
  const auto tensor = [&](const std::string& name) {
    return *std::ranges::find(made->tensors, name, &Tensor::name);
  };
  const auto op = [&](const std::string& name) {
    return *std::ranges::find(made->ops, name, &Op::name);
  };
  EXPECT_EQ(tensor("r.bfloat16").lane, 2);
  EXPECT_EQ(NameOf(*made, *tensor("r.bfloat16").held_until), "between");
  EXPECT_EQ(tensor("r").lane, 4);
  EXPECT_EQ(op("cat").slots[0].traffic, Bytes(64 + 2 * 64));
  EXPECT_EQ(op("scatter").FindAttribute("bytes"), 64);
  EXPECT_EQ(op("reduce").FindAttribute("bytes"), 16);
  EXPECT_EQ(op("r.to").slots[0].traffic, Bytes(48));
  EXPECT_EQ(op("r.to").lane, 4);
  EXPECT_FALSE(WithBfloat16Reduction(*made, {}, why_not));  // nothing is reduced in fp32
  EXPECT_EQ(why_not, "");
}

TEST(OtherShardingTest, GradientsOfShortParametersAreNotCast) {
  std::string why_not;
  const std::optional<Trace> made = WithBfloat16Reduction(Reduction(true), {}, why_not);
  ASSERT_TRUE(made) << why_not;
  EXPECT_EQ(TextOf(*made, Phase::kForward),
            "grad: p 64 -> d 64\n"
            "cat: d 64 -> s 64\n"
            "scatter: s 64 -> e 16\n"
            "reduce: e 16 -> e 16\n"
            "between: d 64 -> x 4\n"
            "step: w 32 e 16 -> w 32 after reduce\n");
}

TEST(OtherShardingTest, OtherUsesOfGradientsAreNamed) {
  const auto why_not = [](const Trace& trace) {
    std::string text;
    EXPECT_FALSE(WithBfloat16Reduction(trace, {}, text));
    return text;
  };
  EXPECT_EQ(why_not(Reduction(false, DataType::kFloat32)),
            "'scatter' reduces gradients that were added up, or made, in fp32");
  EXPECT_EQ(why_not(Reduction(false, DataType::kBfloat16, "s")),
            "'between' uses gradients beside their reduction");
  EXPECT_EQ(why_not(Reduction(false, DataType::kBfloat16, "r")),
            "'between' uses gradients while they are reduced");
  EXPECT_EQ(why_not(testing::ChainTrace()), "");  // of one process
}

}  // namespace
}  // namespace spillway::testing
