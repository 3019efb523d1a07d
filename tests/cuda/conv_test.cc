// Compares convolutions on the GPU with a naive reference, for every algorithm that cuDNN accepts.

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda/kernels_fixture.h"

namespace spillway::testing {
namespace {

class ConvTest : public KernelsTest, public ::testing::WithParamInterface<reference::Conv> {
 protected:
  static std::vector<Attribute> Attributes(const reference::Conv& c, bool bias) {
    return {{"in_channels", static_cast<double>(c.in_channels)},
            {"in_height", static_cast<double>(c.in_height)},
            {"in_width", static_cast<double>(c.in_width)},
            {"out_channels", static_cast<double>(c.out_channels)},
            {"out_height", static_cast<double>(c.out_height())},
            {"out_width", static_cast<double>(c.out_width())},
            {"kernel_h", static_cast<double>(c.kernel_h)},
            {"kernel_w", static_cast<double>(c.kernel_w)},
            {"stride_h", static_cast<double>(c.stride_h)},
            {"stride_w", static_cast<double>(c.stride_w)},
            {"pad_h", static_cast<double>(c.pad_h)},
            {"pad_w", static_cast<double>(c.pad_w)},
            {"groups", static_cast<double>(c.groups)},
            {"bias", bias ? 1.0 : 0.0}};
  }

  // Runs the case, whole and in parts, with every candidate of each slot. The other slots use their
  // first candidate. An algorithm that cuDNN refuses at launch is noted. The test fails only if no
  // algorithm of a slot passes.
  void CheckAllCandidates(const KernelCase& test, const std::vector<Array>& want) {
    std::vector<std::vector<int64_t>> splits{{test.op.batch}};
    if (test.op.batch > 1) splits.push_back({test.op.batch - 1, 1});
    for (const std::vector<int64_t>& parts : splits) {
      std::map<std::string, std::string> first;
      for (size_t slot = 0; slot < test.op.slots.size(); ++slot) {
        first[test.op.slots[slot].name] = Common(test.op, slot, parts).at(0);
      }
      for (size_t slot = 0; slot < test.op.slots.size(); ++slot) {
        int passed = 0;
        for (const std::string& algorithm : Common(test.op, slot, parts)) {
          std::map<std::string, std::string> algorithms = first;
          algorithms[test.op.slots[slot].name] = algorithm;
          const std::string what = test.op.slots[slot].name + " " + algorithm + ", " +
                                   std::to_string(parts.size()) + " parts";
          try {
            const std::vector<Values> got = Run(test, parts, algorithms);
            for (size_t i = 0; i < want.size(); ++i) {
              ExpectClose(got[i], want[i], what + ", output " + std::to_string(i));
            }
            ++passed;
          } catch (const Error& error) {
            std::cout << "[   NOTE   ] refused at launch: " << what << ": " << error.what() << "\n";
            static_cast<void>(cudaGetLastError());
            SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
          }
        }
        EXPECT_GT(passed, 0) << test.op.slots[slot].name;
      }
    }
  }

  // Returns the algorithms that cuDNN accepts for every part.
  std::vector<std::string> Common(const Op& op, size_t slot, const std::vector<int64_t>& parts) {
    std::map<std::string, size_t> accepted;
    for (const int64_t batch : parts) {
      for (const Candidate& candidate : kernels_->Candidates(op, slot, batch, types_)) {
        ++accepted[candidate.algorithm];
      }
    }
    std::vector<std::string> names;
    for (const auto& [name, count] : accepted) {
      if (count == parts.size()) names.push_back(name);
    }
    return names;
  }

  void CheckForward();
  void CheckBackward();
};

void ConvTest::CheckForward() {
  const reference::Conv& c = GetParam();
  for (const bool bias : {false, true}) {
    KernelCase test;
    test.op = MakeOp(OpType::kConv2d, Phase::kForward, c.batch, Attributes(c, bias));
    test.inputs = {Random(c.batch * c.in_size()), Random(c.weight_size())};
    if (bias) test.inputs.push_back(Random(c.out_channels));
    test.outputs = {{static_cast<size_t>(c.batch * c.out_size()), -1}};
    Array y(c.batch * c.out_size());
    c.ForEach([&](int x, int w, int to) {
      y[to] += static_cast<double>(test.inputs[0][x]) * test.inputs[1][w];
    });
    if (bias) reference::AddBias(y, ToDouble(test.inputs[2]), c.out_height() * c.out_width());
    CheckAllCandidates(test, {y});
  }
}

void ConvTest::CheckBackward() {
  const reference::Conv& c = GetParam();
  const Values x = Random(c.batch * c.in_size());
  const Values weight = Random(c.weight_size());
  const Values bias = Random(c.out_channels);
  const Values dy = Random(c.batch * c.out_size());
  const Values old_dx = Random(x.size());
  Array dx(x.size()), dweight(weight.size());
  c.ForEach([&](int i, int w, int o) {
    dx[i] += static_cast<double>(weight[w]) * dy[o];
    dweight[w] += static_cast<double>(x[i]) * dy[o];
  });
  const Array dbias =
      reference::BiasGradient(ToDouble(dy), c.out_channels, c.out_height() * c.out_width());
  for (const BackwardMode& mode : kModes) {
    for (const bool has_bias : {false, true}) {
      Op op =
          MakeOp(OpType::kConv2d, Phase::kBackward, c.batch, With(Attributes(c, has_bias), mode));
      op.slots = {{"bwd_filter", "", 0, Bytes(0)}};
      if (mode.needs_dx) op.slots.insert(op.slots.begin(), {"bwd_data", "", 0, Bytes(0)});
      const BackwardCase made = MakeBackward(op, mode, x, weight, has_bias ? bias : Values(), dy,
                                             old_dx, dx, dweight, dbias);
      CheckAllCandidates(made.test, made.want);
    }
  }
}

TEST_P(ConvTest, ForwardMatchesReference) { CheckForward(); }
TEST_P(ConvTest, BackwardMatchesReference) { CheckBackward(); }

TEST_P(ConvTest, ForwardMatchesReferenceInBfloat16) {
  UseBfloat16();
  CheckForward();
}

TEST_P(ConvTest, BackwardMatchesReferenceInBfloat16) {
  UseBfloat16();
  CheckBackward();
}

// Returns a name such as "3x13x11_to_8_kernel_3x3_stride_1x1_pad_1x1_groups_1_batch_3".
std::string ShapeName(const ::testing::TestParamInfo<reference::Conv>& info) {
  const reference::Conv& c = info.param;
  const auto pair = [](int a, int b) { return std::to_string(a) + "x" + std::to_string(b); };
  return std::to_string(c.in_channels) + "x" + pair(c.in_height, c.in_width) + "_to_" +
         std::to_string(c.out_channels) + "_kernel_" + pair(c.kernel_h, c.kernel_w) + "_stride_" +
         pair(c.stride_h, c.stride_w) + "_pad_" + pair(c.pad_h, c.pad_w) + "_groups_" +
         std::to_string(c.groups) + "_batch_" + std::to_string(c.batch);
}

//            batch, in c h w, out c, kernel h w, stride h w, pad h w, groups
INSTANTIATE_TEST_SUITE_P(Shapes, ConvTest,
                         ::testing::Values(reference::Conv{3, 3, 13, 11, 8, 3, 3, 1, 1, 1, 1, 1},
                                           reference::Conv{1, 5, 9, 17, 7, 5, 5, 1, 1, 2, 2, 1},
                                           reference::Conv{5, 3, 35, 31, 4, 11, 11, 4, 4, 2, 2, 1},
                                           reference::Conv{2, 4, 12, 15, 6, 5, 3, 2, 1, 1, 2, 2},
                                           reference::Conv{4, 6, 14, 14, 8, 3, 3, 1, 1, 1, 1, 2},
                                           reference::Conv{3, 16, 7, 7, 24, 1, 1, 1, 1, 0, 0, 1},
                                           reference::Conv{2, 16, 28, 28, 32, 3, 3, 1, 1, 1, 1, 1},
                                           reference::Conv{2, 6, 9, 17, 8, 1, 7, 1, 1, 0, 3, 1},
                                           reference::Conv{2, 6, 17, 9, 8, 7, 1, 1, 1, 3, 0, 1},
                                           reference::Conv{2, 8, 15, 15, 8, 3, 3, 2, 2, 0, 0, 1}),
                         ShapeName);

TEST_F(KernelsTest, ConvOffersSeveralAlgorithms) {
  const reference::Conv c{16, 32, 28, 28, 32, 3, 3, 1, 1, 1, 1, 1};
  Op op = MakeOp(OpType::kConv2d, Phase::kBackward, c.batch,
                 {{"in_channels", 32},
                  {"in_height", 28},
                  {"in_width", 28},
                  {"out_channels", 32},
                  {"out_height", 28},
                  {"out_width", 28},
                  {"kernel_h", 3},
                  {"kernel_w", 3},
                  {"stride_h", 1},
                  {"stride_w", 1},
                  {"pad_h", 1},
                  {"pad_w", 1},
                  {"groups", 1}});
  for (const char* slot : {"fwd", "bwd_data", "bwd_filter"}) {
    op.slots = {{slot, "", 0, Bytes(0)}};
    std::string names;
    const std::vector<Candidate> candidates = kernels_->Candidates(op, 0, c.batch);
    for (const Candidate& candidate : candidates) {
      names += " " + candidate.algorithm + "=" + FormatBytes(candidate.workspace);
    }
    std::cout << "[   NOTE   ] " << slot << ":" << names << "\n";
    EXPECT_GE(candidates.size(), 3u) << slot << ":" << names;
  }
}

TEST_F(KernelsTest, ConvRejectsAWrongOutputSize) {
  const Op op = MakeOp(OpType::kConv2d, Phase::kForward, 2,
                       {{"in_channels", 3},
                        {"in_height", 8},
                        {"in_width", 8},
                        {"out_channels", 4},
                        {"out_height", 8},
                        {"out_width", 7},
                        {"kernel_h", 3},
                        {"kernel_w", 3},
                        {"stride_h", 1},
                        {"stride_w", 1},
                        {"pad_h", 1},
                        {"pad_w", 1},
                        {"groups", 1}});
  EXPECT_THROW(kernels_->Candidates(op, 0, 2), InputError);
}

TEST_F(KernelsTest, ConvRejectsTwoTypes) {
  KernelCase test;
  test.op = MakeOp(OpType::kConv2d, Phase::kForward, 1,
                   {{"in_channels", 2},
                    {"in_height", 4},
                    {"in_width", 4},
                    {"out_channels", 3},
                    {"out_height", 4},
                    {"out_width", 4},
                    {"kernel_h", 1},
                    {"kernel_w", 1},
                    {"stride_h", 1},
                    {"stride_w", 1},
                    {"pad_h", 0},
                    {"pad_w", 0},
                    {"groups", 1}});
  test.inputs = {Random(2 * 16), Random(2 * 3)};
  test.outputs = {{3 * 16, -1}};
  types_.inputs = {DataType::kFloat32, DataType::kBfloat16};
  types_.outputs = {DataType::kBfloat16};
  const std::string algorithm = kernels_->Candidates(test.op, 0, 1, types_).at(0).algorithm;
  EXPECT_THROW(Run(test, {1}, {{"fwd", algorithm}}), InputError);
}

}  // namespace
}  // namespace spillway::testing
