// Compares the CUDA kernels of all ops except convolutions with naive references, on a real GPU.

#include "backend/cuda/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/cuda/kernels_fixture.h"
#include "traces/base/counter_random.h"

namespace spillway::testing {
namespace {

// Tests of ops on images, whose operands may be bfloat16.
class ImageKernelsTest : public KernelsTest {
 protected:
  void CheckPooling();
};

TEST_F(KernelsTest, Linear) {
  for (const auto& [batch, in, out] : {std::array{1, 7, 5}, std::array{6, 33, 17}}) {
    for (const bool has_bias : {false, true}) {
      const std::vector<Attribute> attributes{{"in_features", static_cast<double>(in)},
                                              {"out_features", static_cast<double>(out)},
                                              {"bias", has_bias ? 1.0 : 0.0}};
      const Values x = Random(batch * in), weight = Random(in * out), dy = Random(batch * out);
      const Values bias = has_bias ? Random(out) : Values();
      const Values old_dx = Random(x.size());
      Array y(batch * out), dx(x.size()), dweight(weight.size());
      for (int n = 0; n < batch; ++n)
        for (int o = 0; o < out; ++o)
          for (int i = 0; i < in; ++i) {
            y[n * out + o] += static_cast<double>(x[n * in + i]) * weight[o * in + i];
            dx[n * in + i] += static_cast<double>(dy[n * out + o]) * weight[o * in + i];
            dweight[o * in + i] += static_cast<double>(dy[n * out + o]) * x[n * in + i];
          }
      if (has_bias) reference::AddBias(y, ToDouble(bias), 1);
      KernelCase forward;
      forward.op = MakeOp(OpType::kLinear, Phase::kForward, batch, attributes);
      forward.inputs = {x, weight};
      if (has_bias) forward.inputs.push_back(bias);
      forward.outputs = {{y.size(), -1}};
      Check(forward, {y});

      const Array dbias = reference::BiasGradient(ToDouble(dy), out, 1);
      for (const BackwardMode& mode : kModes) {
        const BackwardCase made =
            MakeBackward(MakeOp(OpType::kLinear, Phase::kBackward, batch, With(attributes, mode)),
                         mode, x, weight, bias, dy, old_dx, dx, dweight, dbias);
        Check(made.test, made.want, !(mode.needs_dx && mode.fused));
        if (mode.fused || !has_bias) continue;
        const BackwardCase adding = AddingTo(made, mode, weight, bias);
        Check(adding.test, adding.want);
      }
    }
  }
}

void ImageKernelsTest::CheckPooling() {
  // The loop sets `planes`. The second shape has a ceil-mode output, the third is asymmetric, the
  // last global.
  const reference::Pool shapes[] = {
      {0, 8, 10, 4, 5, 2, 2, 2, 2, 0, 0}, {0, 12, 13, 6, 6, 3, 3, 2, 2, 0, 0},
      {0, 9, 7, 9, 4, 3, 2, 1, 2, 1, 1},  {0, 14, 14, 7, 7, 3, 3, 2, 2, 0, 0},
      {0, 7, 7, 7, 7, 3, 3, 1, 1, 1, 1},  {0, 7, 7, 1, 1, 7, 7, 1, 1, 0, 0}};
  constexpr int kBatch = 3, kChannels = 5;
  for (reference::Pool p : shapes) {
    p.planes = kBatch * kChannels;
    for (const bool max : {true, false}) {
      const OpType type = max ? OpType::kMaxPool2d : OpType::kAvgPool2d;
      std::vector<Attribute> attributes{{"channels", kChannels},
                                        {"in_height", static_cast<double>(p.in_height)},
                                        {"in_width", static_cast<double>(p.in_width)},
                                        {"out_height", static_cast<double>(p.out_height)},
                                        {"out_width", static_cast<double>(p.out_width)},
                                        {"kernel_h", static_cast<double>(p.kernel_h)},
                                        {"kernel_w", static_cast<double>(p.kernel_w)},
                                        {"stride_h", static_cast<double>(p.stride_h)},
                                        {"stride_w", static_cast<double>(p.stride_w)},
                                        {"pad_h", static_cast<double>(p.pad_h)},
                                        {"pad_w", static_cast<double>(p.pad_w)}};
      Values x = Random(p.in_size());
      for (float& value : x) value = std::round(value * 4) / 4;  // makes ties
      const Values dy = Random(p.out_size()), old_dx = Random(p.in_size());
      Array y(p.out_size()), dx(p.in_size());
      if (max) {
        const std::vector<int> winners = p.Winners(ToDouble(x));
        for (size_t i = 0; i < y.size(); ++i) {
          y[i] = x[winners[i]];
          dx[winners[i]] += dy[i];
        }
      } else {
        p.ForEach([&](int from, int to) {
          y[to] += x[from] / p.Divisor(to);
          dx[from] += dy[to] / p.Divisor(to);
        });
      }
      Check({MakeOp(type, Phase::kForward, kBatch, attributes), {x}, {{y.size(), -1}}}, {y});

      std::vector<Values> inputs = {dy};
      if (max) inputs = {x, ToFloat(y), dy};
      Check({MakeOp(type, Phase::kBackward, kBatch, attributes), inputs, {{dx.size(), -1}}}, {dx});

      attributes.push_back({"accumulate", 1});
      inputs.push_back(old_dx);
      const int last = static_cast<int>(inputs.size()) - 1;
      KernelCase accumulate{
          MakeOp(type, Phase::kBackward, kBatch, attributes), inputs, {{dx.size(), last}}};
      Check(accumulate, {dx + ToDouble(old_dx)});
    }
  }
}

TEST_F(KernelsTest, Relu) {
  for (const int elements : {1, 12, 37}) {
    constexpr int kBatch = 5;
    std::vector<Attribute> attributes{{"elements", static_cast<double>(elements)}};
    const Values x = Random(kBatch * elements), dy = Random(x.size()), old_dx = Random(x.size());
    Array y = ToDouble(x), dx = ToDouble(dy);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = std::max(y[i], 0.0);
      if (y[i] <= 0) dx[i] = 0;
    }
    for (const int in_place : {-1, 0}) {
      Check(
          {MakeOp(OpType::kRelu, Phase::kForward, kBatch, attributes), {x}, {{y.size(), in_place}}},
          {y});
    }
    for (const int in_place : {-1, 1}) {
      Check({MakeOp(OpType::kRelu, Phase::kBackward, kBatch, attributes),
             {ToFloat(y), dy},
             {{dx.size(), in_place}}},
            {dx});
    }
    attributes.push_back({"accumulate", 1});
    Check({MakeOp(OpType::kRelu, Phase::kBackward, kBatch, attributes),
           {ToFloat(y), dy, old_dx},
           {{dx.size(), 2}}},
          {dx + ToDouble(old_dx)});
  }
}

TEST_F(KernelsTest, Gelu) {
  for (const int elements : {1, 12, 37}) {
    constexpr int kBatch = 5;
    const std::vector<Attribute> attributes{{"elements", static_cast<double>(elements)}};
    const Values x = Random(kBatch * elements), dy = Random(x.size());
    Array y = ToDouble(x), dx = ToDouble(dy);
    for (size_t i = 0; i < x.size(); ++i) {
      const double distribution = 0.5 * (1 + std::erf(y[i] / std::sqrt(2.0)));
      const double density = std::exp(-y[i] * y[i] / 2) * 0.3989422804014327;
      dx[i] *= distribution + y[i] * density;
      y[i] *= distribution;
    }
    Check({MakeOp(OpType::kGelu, Phase::kForward, kBatch, attributes), {x}, {{y.size(), -1}}}, {y});
    for (const int in_place : {-1, 1}) {
      Check({MakeOp(OpType::kGelu, Phase::kBackward, kBatch, attributes),
             {x, dy},
             {{dx.size(), in_place}}},
            {dx});
    }
  }
}

TEST_F(KernelsTest, Lrn) {
  const reference::Lrn lrn{3, 11, 30, 5, 0.3, 0.75, 2};
  std::vector<Attribute> attributes{{"channels", 11}, {"height", 6},  {"width", 5}, {"size", 5},
                                    {"alpha", 0.3},   {"beta", 0.75}, {"k", 2}};
  const Values x = Random(3 * 11 * 30), dy = Random(x.size()), old_dx = Random(x.size());
  const Array y = lrn.Forward(ToDouble(x));
  const Array dx = lrn.Backward(ToDouble(x), ToDouble(dy));
  Check({MakeOp(OpType::kLrn, Phase::kForward, 3, attributes), {x}, {{y.size(), -1}}}, {y});
  Check({MakeOp(OpType::kLrn, Phase::kBackward, 3, attributes),
         {x, ToFloat(y), dy},
         {{dx.size(), -1}}},
        {dx});
  const std::vector<Values> in_place = Run({MakeOp(OpType::kLrn, Phase::kBackward, 3, attributes),
                                            {x, ToFloat(y), dy},
                                            {{dx.size(), 2}}},
                                           {1, 2});
  ExpectClose(in_place[0], dx, "in place");
  attributes.push_back({"accumulate", 1});
  Check({MakeOp(OpType::kLrn, Phase::kBackward, 3, attributes),
         {x, ToFloat(y), dy, old_dx},
         {{dx.size(), 3}}},
        {dx + ToDouble(old_dx)});
}

TEST_F(KernelsTest, Dropout) {
  for (const int elements : {37, 64}) {
    constexpr int kBatch = 4;
    constexpr float kRatio = 0.4f;
    std::vector<Attribute> attributes{{"elements", static_cast<double>(elements)},
                                      {"ratio", kRatio}};
    const Values x = Random(kBatch * elements), old_dx = Random(x.size());
    Array y = ToDouble(x);
    for (size_t i = 0; i < y.size(); ++i) {
      const bool keep = DropoutKeeps(kSeed, 5, static_cast<int64_t>(i), kRatio);  // layer 5
      y[i] = keep ? y[i] / (1 - kRatio) : 0;
    }
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      for (const int in_place : {-1, 0}) {
        Check({MakeOp(OpType::kDropout, phase, kBatch, attributes), {x}, {{y.size(), in_place}}},
              {y});
      }
    }
    attributes.push_back({"accumulate", 1});
    Check({MakeOp(OpType::kDropout, Phase::kBackward, kBatch, attributes),
           {x, old_dx},
           {{y.size(), 1}}},
          {y + ToDouble(old_dx)});
  }
}

TEST_F(KernelsTest, RowsOfBands) {
  // Two channels of a map of five rows of one element, in bands of two and three rows.
  const std::vector<Values> bands{{0, 1, 10, 11}, {2, 3, 4, 12, 13, 14}};
  const auto rows_from = [&](double first, double height, bool lowest) {
    return MakeOp(OpType::kRows, Phase::kForward, 1,
                  {{"channels", 2},
                   {"width", 1},
                   {"first_row", first},
                   {"height", height},
                   {"parts", 2},
                   {"height_0", 2},
                   {"height_1", 3},
                   {"lowest", lowest ? 1.0 : 0.0}});
  };
  const double least = std::numeric_limits<float>::lowest();
  Check({rows_from(1, 2, false), bands, {{4, -1}}}, {{1, 2, 11, 12}});
  Check({rows_from(-1, 7, false), bands, {{14, -1}}},
        {{0, 0, 1, 2, 3, 4, 0, 0, 10, 11, 12, 13, 14, 0}});
  Check({rows_from(3, 3, true), bands, {{6, -1}}}, {{3, 4, least, 13, 14, least}});
}

TEST_F(KernelsTest, Concat) {
  for (const int plane : {4, 15}) {  // row sizes that are and are not multiples of 16 bytes
    constexpr int kBatch = 3;
    const std::vector<int> channels{2, 5, 3};
    std::vector<Attribute> attributes{
        {"parts", 3},      {"height", 1},     {"width", static_cast<double>(plane)},
        {"channels_0", 2}, {"channels_1", 5}, {"channels_2", 3}};
    const Values whole = Random(kBatch * 10 * plane);
    std::vector<Values> parts(3);
    for (int n = 0; n < kBatch; ++n) {
      int offset = n * 10 * plane;
      for (int i = 0; i < 3; ++i) {
        const int length = channels[i] * plane;
        parts[i].insert(parts[i].end(), whole.begin() + offset, whole.begin() + offset + length);
        offset += length;
      }
    }
    Check(
        {MakeOp(OpType::kConcat, Phase::kForward, kBatch, attributes), parts, {{whole.size(), -1}}},
        {ToDouble(whole)});
    Check({MakeOp(OpType::kConcat, Phase::kBackward, kBatch, attributes),
           {whole},
           {{parts[0].size(), -1}, {parts[1].size(), -1}, {parts[2].size(), -1}}},
          {ToDouble(parts[0]), ToDouble(parts[1]), ToDouble(parts[2])});
    attributes.push_back({"accumulate", 5});  // outputs 0 and 2
    const Values old_0 = Random(parts[0].size()), old_2 = Random(parts[2].size());
    Check({MakeOp(OpType::kConcat, Phase::kBackward, kBatch, attributes),
           {whole, old_0, old_2},
           {{parts[0].size(), 1}, {parts[1].size(), -1}, {parts[2].size(), 2}}},
          {ToDouble(parts[0]) + ToDouble(old_0), ToDouble(parts[1]),
           ToDouble(parts[2]) + ToDouble(old_2)});
  }
}

TEST_F(KernelsTest, Add) {
  for (const int elements : {9, 16}) {
    constexpr int kBatch = 3;
    std::vector<Attribute> attributes{{"elements", static_cast<double>(elements)}};
    const Values a = Random(kBatch * elements), b = Random(a.size());
    const Array sum = ToDouble(a) + ToDouble(b);
    for (const int in_place : {-1, 0}) {
      Check({MakeOp(OpType::kAdd, Phase::kForward, kBatch, attributes),
             {a, b},
             {{a.size(), in_place}}},
            {sum});
    }
    for (const int in_place : {-1, 0}) {
      Check({MakeOp(OpType::kAdd, Phase::kBackward, kBatch, attributes),
             {a},
             {{a.size(), in_place}, {a.size(), -1}}},
            {ToDouble(a), ToDouble(a)});
    }
    attributes.push_back({"accumulate", 2});
    Check({MakeOp(OpType::kAdd, Phase::kBackward, kBatch, attributes),
           {a, b},
           {{a.size(), -1}, {a.size(), 1}}},
          {ToDouble(a), sum});
  }
}

TEST_F(ImageKernelsTest, Pooling) { CheckPooling(); }

TEST_F(ImageKernelsTest, PoolingInBfloat16) {
  UseBfloat16();
  CheckPooling();
}

TEST_F(KernelsTest, BatchNorm) {
  for (const BatchNormShape& shape : kBatchNormShapes) {
    const size_t count = shape.elements(), channels = shape.channels;
    BatchNormOperands v{Random(count), Random(channels), Random(channels), Random(count),
                        Random(count), Random(channels), Random(channels)};
    for (float& variance : v.running_var) variance = std::abs(variance);
    const BackwardCase training = BatchNormTraining(shape, v);
    Check(training.test, training.want, false);
    const BackwardCase inference = BatchNormInference(shape, v);
    Check(inference.test, inference.want);
    for (const BackwardMode& mode : kModes) {
      const BackwardCase backward = BatchNormBackward(shape, mode, v);
      Check(backward.test, backward.want, false);
      if (mode.fused) continue;
      const BackwardCase adding = AddingTo(backward, mode, v.weight, v.bias);
      Check(adding.test, adding.want, false);
    }
    if (shape.batch > 1) {
      EXPECT_THROW(Run(training.test, {1, shape.batch - 1}), InputError);
    }
  }
}

// x and its gradient are bfloat16, everything else is float32.
TEST_F(ImageKernelsTest, BatchNormOfBfloat16) {
  for (const BatchNormShape& shape : kBatchNormShapes) {
    const size_t count = shape.elements(), channels = shape.channels;
    UseBfloat16();
    BatchNormOperands v{Random(count), Random(channels), Random(channels), Random(count),
                        Random(count), Random(channels), Random(channels)};
    for (float& variance : v.running_var) variance = std::abs(variance);
    bfloat16_ = false;
    types_ = {.inputs = {DataType::kBfloat16}, .outputs = {}};
    const BackwardCase training = BatchNormTraining(shape, v);
    Check(training.test, training.want, false);
    const BackwardCase inference = BatchNormInference(shape, v);
    Check(inference.test, inference.want);
    for (const BackwardMode& mode : kModes) {
      const BackwardCase backward = BatchNormBackward(shape, mode, v);
      bfloat16_ = mode.needs_dx;
      types_ = {.inputs = {DataType::kBfloat16}, .outputs = {}};
      if (mode.accumulate) {
        types_.inputs.resize(backward.test.inputs.size());
        types_.inputs.back() = DataType::kBfloat16;
      } else if (mode.needs_dx) {
        types_.outputs = {DataType::kBfloat16};
      }
      Check(backward.test, backward.want, false);
    }
  }
}

TEST_F(KernelsTest, Fork) {
  for (const int elements : {9, 16}) {
    constexpr int kBatch = 3;
    std::vector<Attribute> attributes{{"elements", static_cast<double>(elements)}, {"parts", 3}};
    const Values a = Random(kBatch * elements), b = Random(a.size()), c = Random(a.size());
    const Array copy = ToDouble(a), sum = copy + ToDouble(b) + ToDouble(c);
    for (const int shared : {-1, 0}) {
      Check({MakeOp(OpType::kFork, Phase::kForward, kBatch, attributes),
             {a},
             {{a.size(), shared}, {a.size(), -1}, {a.size(), -1}}},
            {copy, copy, copy});
      Check({MakeOp(OpType::kFork, Phase::kBackward, kBatch, attributes),
             {a, b, c},
             {{a.size(), shared}}},
            {sum});
    }
    attributes.push_back({"accumulate", 1});
    Check({MakeOp(OpType::kFork, Phase::kBackward, kBatch, attributes),
           {a, b, c, a},
           {{a.size(), 3}}},
          {sum + copy});
  }
}

TEST_F(KernelsTest, SoftmaxLoss) {
  constexpr int kBatch = 5;
  for (const int classes : {3, 1000}) {
    const std::vector<Attribute> attributes{{"elements", static_cast<double>(classes)}};
    const Values x = Random(kBatch * classes);
    Values labels(kBatch);
    std::vector<int32_t> label(kBatch);
    for (int n = 0; n < kBatch; ++n) label[n] = (n * 7 + 2) % classes;
    std::memcpy(labels.data(), label.data(), kBatch * sizeof(float));
    const Array y = reference::Softmax(ToDouble(x), classes);
    Array dx = y;
    double loss = 0;
    for (int n = 0; n < kBatch; ++n) {
      loss -= std::log(y[n * classes + label[n]]) / kBatch;
      dx[n * classes + label[n]] -= 1;
    }
    dx = 1.0 / kBatch * dx;
    for (const int in_place : {-1, 0}) {
      Check({MakeOp(OpType::kSoftmaxLoss, Phase::kForward, kBatch, attributes),
             {x, labels},
             {{y.size(), in_place}, {1, -1}}},
            {y, {loss}});
      Check({MakeOp(OpType::kSoftmaxLoss, Phase::kBackward, kBatch, attributes),
             {ToFloat(y), labels},
             {{y.size(), in_place}}},
            {dx});
    }
  }
}

TEST_F(KernelsTest, Sgd) {
  KernelCase test;
  test.op = MakeOp(
      OpType::kSgd, Phase::kUpdate, 1,
      {{"elements", 37 + 8}, {"learning_rate", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}});
  std::vector<Array> want;
  for (const size_t count : {37, 8}) {
    const Values p = Random(count), g = Random(count), m = Random(count);
    const Array next_m = 0.9 * ToDouble(m) + (ToDouble(g) + 0.01 * ToDouble(p));
    want.push_back(ToDouble(p) + -0.1 * next_m);
    want.push_back(next_m);
    const int base = static_cast<int>(test.inputs.size());
    test.inputs.insert(test.inputs.end(), {p, g, m});
    test.outputs.push_back({count, base});
    test.outputs.push_back({count, base + 2});
  }
  Check(test, want);
}

TEST_F(KernelsTest, UnsupportedTypesAndBadOperandsAreNamed) {
  const Op other = MakeOp(OpType::kOther, Phase::kForward, 1, {});
  try {
    kernels_->Candidates(other, 0, 1);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("supported: conv2d"), std::string::npos);
  }
  const Op relu = MakeOp(OpType::kRelu, Phase::kForward, 2, {{"elements", 8}});
  EXPECT_THROW(Run({relu, {Random(15)}, {{16, -1}}}, {2}), InputError);
  EXPECT_THROW(Run({relu, {Random(16)}, {}}, {2}), InputError);
}

}  // namespace
}  // namespace spillway::testing
