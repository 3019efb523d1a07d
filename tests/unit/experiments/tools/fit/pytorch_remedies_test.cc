#include "experiments/tools/fit/pytorch_remedies.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/fixtures.h"

namespace spillway::testing {
namespace {

using Names = std::vector<std::string>;

TEST(PyTorchRemediesTest, CodeReachesTheModules) {
  struct {
    Names all;
    size_t count;
    std::string code;
  } const cases[] = {
      {{"h.0", "h.1", "h.2"}, 3, "model.h"},
      {{"h.0", "h.1", "h.2"}, 2, "model.h[:2]"},
      {{"a.0.b.0", "a.0.b.1"}, 1, "model.a[0].b[:1]"},
      {{"l1.0", "l1.1", "l2.0", "l2.1"}, 4, "[*model.l1, *model.l2]"},
      {{"l1.0", "l1.1", "l2.0", "l2.1"}, 3, "[*model.l1, *model.l2[:1]]"},
      {{"l1.0", "l1.1", "l2.0", "l2.1"}, 2, "model.l1"},
      // Blocks that are no list, that begin at another number, or that run in another order.
      {{"encoder", "decoder"}, 2, "map(model.get_submodule, \"encoder decoder\".split())"},
      {{"h.1", "h.2"}, 2, "map(model.get_submodule, \"h.1 h.2\".split())"},
      {{"h.1", "h.0"}, 1, "map(model.get_submodule, \"h.1\".split())"},
      {{"res2_0", "res2_1"}, 1, "map(model.get_submodule, \"res2_0\".split())"},
  };
  for (const auto& [all, count, code] : cases) {
    EXPECT_EQ(ModulesOf(std::span(all).first(count), all), code) << all[0];
  }
}

TEST(PyTorchRemediesTest, TheTextSaysHowManyBlocks) {
  const Names blocks = {"h.0", "h.1", "h.2"};
  EXPECT_EQ(Checkpoint(blocks, 2).text, "checkpoint 2 of 3 blocks");
  EXPECT_EQ(Checkpoint(blocks, 2).policy, "saved-tensors:plan=checkpoint,blocks=2");
  EXPECT_EQ(Checkpoint(blocks, 3).text, "checkpoint all 3 blocks");
  EXPECT_EQ(Checkpoint(blocks, 3).policy, "saved-tensors:plan=checkpoint");
  EXPECT_EQ(SmallerBatch(3, BatchSource::kScaled).text, "batch 3 (scaled)");
  EXPECT_EQ(SmallerBatch(3, BatchSource::kLowered).text, "batch 3");
}

TEST(PyTorchRemediesTest, MoreGpusAreStartedOnWholeHosts) {
  const auto python = [](std::vector<int64_t> mesh, std::optional<int> gpus) {
    Device device;
    if (gpus) device.cluster.emplace().gpus = *gpus;
    return MoreGpus(mesh, 2, device).python;
  };
  EXPECT_EQ(python({64}, 8),
            "mesh = init_device_mesh(\"cuda\", (64,))  # torchrun --nnodes=8 --nproc_per_node=8");
  EXPECT_EQ(python({3, 4}, 8),
            "mesh = init_device_mesh(\"cuda\", (3, 4,))  # torchrun --nnodes=2 --nproc_per_node=6");
  EXPECT_EQ(python({4}, std::nullopt),
            "mesh = init_device_mesh(\"cuda\", (4,))  # torchrun with 4 processes");
  EXPECT_EQ(MoreGpus(std::vector<int64_t>{16, 4}, 8, {}).text,
            "64 GPUs (FSDP over 8 times as many)");
}

// The recording names inner operators; PyTorch's lists name those that a program calls.
TEST(PyTorchRemediesTest, SelectiveCheckpointsNameTheOperators) {
  testing::TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 1);
  const auto op = [&](const std::string& name, OpType type, Phase phase = Phase::kForward) {
    builder.Tensor(name + ".y", TensorKind::kActivation, 1);
    builder.Op(name, phase, {"x"}, {name + ".y"}, type);
  };
  op("aten::addmm 4x4", OpType::kMatmul);
  op("aten::_flash_attention_forward 4x4", OpType::kAttention);
  op("aten::cudnn_convolution 4x4", OpType::kConvolution);
  op("aten::relu 4x4", OpType::kOther);
  op("aten::mm 4x4", OpType::kMatmul, Phase::kBackward);
  op("my_kernel", OpType::kMatmul);
  Trace trace = builder.Build();
  for (Op& each : trace.ops) each.slots[0].signature = each.name;
  const Names blocks = {"h.0", "h.1"};
  EXPECT_EQ(SelectiveCheckpoint(blocks, trace).python,
            "aten = torch.ops.aten\n"
            "keep = functools.partial(create_selective_checkpoint_contexts, "
            "[aten._scaled_dot_product_flash_attention.default, aten.addmm.default, "
            "aten.convolution.default])\n"
            "for b in model.h: b.forward = functools.partial(checkpoint, b.forward, "
            "use_reentrant=False, context_fn=keep)");
}

}  // namespace
}  // namespace spillway::testing
