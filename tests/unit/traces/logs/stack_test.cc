// Tests which frames of a stack tell people who requested memory.

#include "traces/logs/stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spillway::testing {
namespace {

// Frames of each kind.
const std::vector<StackFrame> kCode{
    {"/home/me/train.py", 3, "<module>"},
    {"/opt/torch/venv/lib/python3.12/site-packages/transformers/activations.py", 66, "forward"},
    {"/home/me/torch/model.py", 8, "forward"},
    {"/tmp/ipykernel_1/17.py", 1, "<cell line: 1>"},
    {"<stdin>", 1, "<module>"},
    {"C:\\Users\\me\\train.py", 4, "main"},
    {"pipeline.py", 9, "__call__"}};
const std::vector<StackFrame> kWrapper{
    {"/usr/lib/python3.12/contextlib.py", 81, "inner"},
    {"/usr/lib/python3.11/functools.py", 9, "reduce"},
    {"contextlib.py", 81, "inner"},
    {"<frozen runpy>", 88, "_run_code"},
    {"/v/site-packages/transformers/utils/generic.py", 1068, "wrapper"},
    {"/v/dist-packages/lightning/call.py", 5, "_wrapped_step"}};
const std::vector<StackFrame> kOperator{
    {"/v/site-packages/torch/nn/functional.py", 3504, "cross_entropy"},
    {"/v/site-packages/torch/optim/adam.py", 178, "_init_group"},
    {"/src/pytorch/torch/nn/modules/normalization.py", 229, "forward"},
    {"torch/_tensor.py", 3, "clone"},
    {"C:\\v\\site-packages\\torch\\nn\\functional.py", 3, "relu"},
    {"/tmp/torchinductor_me/ab/cab.py", 70, "call"}};
const std::vector<StackFrame> kMachinery{
    {"/v/site-packages/torch/nn/modules/module.py", 1790, "_call_impl"},
    {"/v/site-packages/torch/utils/_contextlib.py", 116, "decorate_context"},
    {"/v/site-packages/torch/optim/optimizer.py", 533, "wrapper"},
    {"/v/site-packages/torch/nn/modules/container.py", 250, "forward"},
    {"/v/site-packages/torch/_ops.py", 700, "op"}};
const std::vector<StackFrame> kNative{{"??", 0, "c10::cuda::Allocator::malloc"},
                                      {"", 0, ""},
                                      {"/src/aten/Blas.cpp", 7, "at::native::addmm"},
                                      {"/v/site-packages/torch/lib/libtorch.so", 0, "gemm"}};
const std::vector<std::vector<StackFrame>> kKinds{kCode, kWrapper, kOperator, kMachinery, kNative};

TEST(StackTest, FramesAreOfOneKind) {
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    for (const StackFrame& frame : kKinds[kind]) {
      EXPECT_EQ(static_cast<size_t>(KindOf(frame)), kind) << TextOf(frame);
    }
  }
}

TEST(StackTest, PathsBeginAtThePackage) {
  EXPECT_EQ(TextOf(kCode[1]), "transformers/activations.py:66 forward");
  EXPECT_EQ(TextOf(kCode[1], true), "activations.py:66 forward");
  EXPECT_EQ(TextOf(kCode[0]), "/home/me/train.py:3 <module>");
  EXPECT_EQ(TextOf(kOperator[2]), "torch/nn/modules/normalization.py:229 forward");
  EXPECT_EQ(TextOf(kOperator[4]), "torch/nn/functional.py:3 relu");
}

TEST(StackTest, AnEmptyStackHasNoRequester) {
  EXPECT_EQ(RequesterOf({}), nullptr);
  EXPECT_EQ(OperatorOf({}), nullptr);
  EXPECT_TRUE(CallsOf({}).empty());
}

// In drawn stacks, the requester is the first frame of the best kind, and the operator is the first
// one before it.
TEST(StackTest, TheInnermostFrameOfTheBestKindCounts) {
  std::mt19937 random(48);
  for (int round = 0; round < 500; ++round) {
    Stack stack;
    std::vector<size_t> kinds;
    for (size_t i = random() % 12 + 1; i > 0; --i) {
      kinds.push_back(random() % kKinds.size());
      const std::vector<StackFrame>& frames = kKinds[kinds.back()];
      stack.push_back(frames[random() % frames.size()]);
    }
    const auto best = std::ranges::min_element(kinds);
    ASSERT_EQ(RequesterOf(stack), &stack[best - kinds.begin()]);
    const auto op = std::find(kinds.begin(), best, 2u);
    ASSERT_EQ(OperatorOf(stack), op == best ? nullptr : &stack[op - kinds.begin()]);
    for (const StackFrame* const call : CallsOf(stack)) EXPECT_EQ(KindOf(*call), FrameKind::kCode);
  }
}

TEST(StackTest, CallsThatOnlyCallOnAreLeftOut) {
  const Stack stack{kCode[1], {"layers.py", 109, "__call__"}, kCode[0]};
  ASSERT_EQ(CallsOf(stack).size(), 2u);
  EXPECT_EQ(CallsOf(stack)[1]->function, "<module>");
}

}  // namespace
}  // namespace spillway::testing
