#include "experiments/changes/other_sharding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace spillway::testing
