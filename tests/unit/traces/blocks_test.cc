#include "traces/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns a trace with a chain of forward ops, one for each layer, and their backward ops.
Trace ChainOf(const std::vector<std::string>& layers) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1);
  for (const std::string& layer : layers) {
    builder.Tensor(layer + ".y", TensorKind::kActivation, 1);
    builder.Op(layer + ".fwd", Phase::kForward, {"x"}, {layer + ".y"}, OpType::kOther, layer);
  }
  return builder.Build();
}

struct Names {
  std::vector<std::string> layers, blocks;  // layers in the order of forward
};

TEST(BlocksTest, LayersNameTheirBlocks) {
  const std::vector<Names> cases = {
      // A recording names blocks before a slash; its operators are numbered, and no blocks.
      {{"gather.0", "model.h.0/mm.1", "model.h.0/add.2", "model.h.1/mm.3", "mm.4"},
       {"", "model.h.0", "model.h.0", "model.h.1", ""}},
      {{"encoder/mm.0", "mm.1"}, {"encoder", ""}},
      // A numbered part recurs. The number of the outermost list counts.
      {{"h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "head"}, {"h.0", "h.0", "h.1", "h.1", ""}},
      {{"h.0.mlp.0.w", "h.0.mlp.1.w", "h.1.mlp.0.w"}, {"h.0", "h.0", "h.1"}},
      {{"layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.1.conv1"},
       {"layer1.0", "layer1.1", "layer2.0", "layer2.1"}},
      // A part that ends with a number recurs.
      {{"conv1", "conv1.bn", "res2_1.conv1", "res2_1.conv1.bn", "res2_2.conv1"},
       {"", "", "res2_1", "res2_1", "res2_2"}},
      {{"net.block1.a", "net.block2.a"}, {"net.block1", "net.block2"}},
      // Nothing recurs.
      {{"conv1", "conv2", "pool.0"}, {"", "", ""}},
      {{"h.7.attn", "h.7.mlp", "0.attn"}, {"", "", ""}},
  };
  for (const Names& names : cases) {
    EXPECT_EQ(BlocksOf(ChainOf(names.layers)), names.blocks) << names.layers[0];
  }
}

TEST(BlocksTest, BlocksAreInTheOrderOfForward) {
  EXPECT_THAT(BlocksInOrder(ChainOf({"h.10.a", "h.2.a", "x", "h.10.b"})),
              ElementsAre("h.10", "h.2"));
  EXPECT_THAT(BlocksInOrder(ChainOf({"conv1", "conv2"})), IsEmpty());
}

TEST(BlocksTest, AStemEndsBeforeTheNumber) {
  EXPECT_EQ(StemOf("transformer.h.11"), "transformer.h.");
  EXPECT_EQ(StemOf("res2_1"), "res2_");
  EXPECT_EQ(StemOf("encoder"), "encoder");
  EXPECT_EQ(StemOf("12"), "");
  EXPECT_EQ(StemOf(""), "");
}

}  // namespace
}  // namespace spillway::testing
