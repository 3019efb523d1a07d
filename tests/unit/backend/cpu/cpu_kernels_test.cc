// Tests of the CPU kernels. Forward steps are compared with naive references and worked examples.
// Backward steps in double are compared with central differences of the kernels' own forward step.
// Float results are compared with double results.

#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/networks.h"
#include "tests/unit/backend/cpu/cpu_kernels_fixture.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

TEST_F(CpuKernelsTest, Relu) {
  std::vector<Attribute> attributes{{"elements", 4}};
  const Op forward = MakeOp(OpType::kRelu, Phase::kForward, 2, attributes);
  const Op backward = MakeOp(OpType::kRelu, Phase::kBackward, 2, attributes);
  const Values x{-1, 2, 0, 3, 4, -5, -6, 7}, y{0, 2, 0, 3, 4, 0, 0, 7};
  const Values dy{1, 2, 3, 4, 5, 6, 7, 8};
  const Array dx{0, 2, 0, 4, 5, 0, 0, 8};
  for (const int in_place : {-1, 0}) Check({forward, {x}, {{8, in_place}}}, {ToDouble(y)});
  for (const int in_place : {-1, 1}) Check({backward, {y, dy}, {{8, in_place}}}, {dx});
  attributes.push_back({"accumulate", 1});
  Check({MakeOp(OpType::kRelu, Phase::kBackward, 2, attributes), {y, dy, x}, {{8, 2}}},
        {dx + ToDouble(x)});

  const Array at = ToDouble(Random(8)), weights = RandomLike(at, random_);
  const Array out = Execute<double>(forward, {at}, {{8, -1}})[0];
  CheckInputGradient(forward, {at}, 0, weights,
                     Execute<double>(backward, {out, weights}, {{8, 1}})[0]);
}

TEST_F(CpuKernelsTest, Gelu) {
  std::vector<Attribute> attributes{{"elements", 4}};
  const Op forward = MakeOp(OpType::kGelu, Phase::kForward, 2, attributes);
  const Op backward = MakeOp(OpType::kGelu, Phase::kBackward, 2, attributes);
  const Values x{-1, 2, 0, 3, 0.5f, -0.5f, -6, 7};
  // x times the cumulative normal distribution at x, taken from a table.
  const Array y{-0.158655254, 1.954499736, 0, 2.995950306, 0.345731231, -0.154268769, -5.9e-9, 7};
  Check({forward, {x}, {{8, -1}}}, {y});

  const Array at = ToDouble(Random(8)), weights = RandomLike(at, random_);
  const auto gradient_of = [&](const Array& dy) {
    return Execute<double>(backward, {at, dy}, {{8, 1}})[0];
  };
  CheckInputGradient(forward, {at}, 0, weights, gradient_of(weights));
  attributes.push_back({"accumulate", 1});
  const Values old_dx = Random(8);
  Check(
      {MakeOp(OpType::kGelu, Phase::kBackward, 2, attributes), {ToFloat(at), x, old_dx}, {{8, 2}}},
      {gradient_of(ToDouble(x)) + ToDouble(old_dx)});
}

TEST_F(CpuKernelsTest, Dropout) {
  for (const int elements : {1, 37, 64}) {
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
        const Op op = MakeOp(OpType::kDropout, phase, kBatch, attributes);
        Check({op, {x}, {{y.size(), in_place}}}, {y});
        EXPECT_EQ(Execute<float>(op, {ToDouble(x)}, {{y.size(), -1}}),
                  Execute<float>(op, {ToDouble(x)}, {{y.size(), in_place}}));
      }
    }
    const Op forward = MakeOp(OpType::kDropout, Phase::kForward, kBatch, attributes);
    const Op backward = MakeOp(OpType::kDropout, Phase::kBackward, kBatch, attributes);
    const Array weights = RandomLike(y, random_);
    CheckInputGradient(forward, {ToDouble(x)}, 0, weights,
                       Execute<double>(backward, {weights}, {{y.size(), -1}})[0]);
    attributes.push_back({"accumulate", 1});
    Check({MakeOp(OpType::kDropout, Phase::kBackward, kBatch, attributes),
           {x, old_dx},
           {{y.size(), 1}}},
          {y + ToDouble(old_dx)});
  }
  const Op op = MakeOp(OpType::kDropout, Phase::kForward, 1, {{"elements", 1}, {"ratio", 1}});
  EXPECT_THROW(Execute<float>(op, {{1}}, {{1, -1}}), InputError);
}

// Two samples with planes of 2 elements. Part a has one channel, part b has two.
TEST_F(CpuKernelsTest, Concat) {
  std::vector<Attribute> attributes{
      {"parts", 2}, {"height", 1}, {"width", 2}, {"channels_0", 1}, {"channels_1", 2}};
  const Values a{1, 2, 7, 8}, b{3, 4, 5, 6, 9, 10, 11, 12};
  const Values whole{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

  Check({MakeOp(OpType::kConcat, Phase::kForward, 2, attributes), {a, b}, {{12, -1}}},
        {ToDouble(whole)});
  Check({MakeOp(OpType::kConcat, Phase::kBackward, 2, attributes), {whole}, {{4, -1}, {8, -1}}},
        {ToDouble(a), ToDouble(b)});
  attributes.push_back({"accumulate", 2});
  Check({MakeOp(OpType::kConcat, Phase::kBackward, 2, attributes), {whole, b}, {{4, -1}, {8, 1}}},
        {ToDouble(a), 2 * ToDouble(b)});
}

TEST_F(CpuKernelsTest, Add) {
  std::vector<Attribute> attributes{{"elements", 3}};
  const Values a{1, 2, 3, 4, 5, 6}, b{10, 20, 30, 40, 50, 60};
  const Array sum{11, 22, 33, 44, 55, 66}, dy{1, 2, 3, 4, 5, 6};
  for (const int in_place : {-1, 0, 1}) {
    Check({MakeOp(OpType::kAdd, Phase::kForward, 2, attributes), {a, b}, {{6, in_place}}}, {sum});
  }
  for (const int in_place : {-1, 0}) {
    Check({MakeOp(OpType::kAdd, Phase::kBackward, 2, attributes), {a}, {{6, in_place}, {6, -1}}},
          {dy, dy});
  }
  attributes.push_back({"accumulate", 2});
  Check({MakeOp(OpType::kAdd, Phase::kBackward, 2, attributes), {a, b}, {{6, -1}, {6, 1}}},
        {dy, sum});
}

TEST_F(CpuKernelsTest, Sgd) {
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
  test.op.attributes[0].value = 44;
  EXPECT_THROW(Check(test, want), InputError);
}

// The clipped gradients are those of torch.nn.utils.clip_grad_norm_ (PyTorch 2.11.0).
TEST_F(CpuKernelsTest, GradientsAreClippedAsInPyTorch) {
  const Array first{0.3, -1.2, 0.4}, second{1.5, -0.8};
  const auto op = [](OpType type, const Array& gradient, Attribute other) {
    return MakeOp(type, Phase::kUpdate, 1,
                  {{"elements", static_cast<double>(gradient.size())}, std::move(other)});
  };
  const Op sum = op(OpType::kSquareSum, first, {"accumulate", 0});
  const Op rest = op(OpType::kSquareSum, second, {"accumulate", 1});
  const Array begun = Execute<double>(sum, {first}, {{1, -1}})[0];
  Check({rest, {ToFloat(second), ToFloat(begun)}, {{1, 1}}}, {{2.14009356 * 2.14009356}});
  const Array squares = Execute<double>(rest, {second, begun}, {{1, 1}})[0];
  const auto check = [&](double max_norm, const Array& gradient, const Array& want) {
    const Op clip = op(OpType::kClip, gradient, {"max_norm", max_norm});
    Check({clip, {ToFloat(gradient), ToFloat(squares)}, {{gradient.size(), 0}}}, {want});
  };
  check(1, first, {0.140180737, -0.560722947, 0.186907634});
  check(1, second, {0.700903654, -0.373815268});
  check(0.25, first, {0.0350451842, -0.140180737, 0.0467269085});
  check(0.25, second, {0.175225914, -0.0934538171});
  check(5, first, first);
  check(5, second, second);
  // A norm that is not a number leaves no gradient as it is.
  const Op clip = op(OpType::kClip, second, {"max_norm", 1});
  EXPECT_TRUE(std::isnan(Execute<float>(clip, {second, {NAN}}, {{2, 0}})[0][0]));
}

// Returns the geometry of a convolution as attributes.
std::vector<Attribute> Attributes(const reference::Conv& c, bool bias) {
  const auto number = [](int value) { return static_cast<double>(value); };
  return {{"in_channels", number(c.in_channels)},
          {"in_height", number(c.in_height)},
          {"in_width", number(c.in_width)},
          {"out_channels", number(c.out_channels)},
          {"out_height", number(c.out_height())},
          {"out_width", number(c.out_width())},
          {"kernel_h", number(c.kernel_h)},
          {"kernel_w", number(c.kernel_w)},
          {"stride_h", number(c.stride_h)},
          {"stride_w", number(c.stride_w)},
          {"pad_h", number(c.pad_h)},
          {"pad_w", number(c.pad_w)},
          {"groups", number(c.groups)},
          {"bias", bias ? 1.0 : 0.0}};
}

// A layer with weights, and the convolution that serves as its reference.
struct WeightLayer {
  OpType type;
  std::vector<Attribute> attributes;
  reference::Conv conv;
};

class WeightLayerTest : public CpuKernelsTest {
 protected:
  // Compares forward and backward in every mode with the reference, and gradients with differences.
  void CheckLayer(const WeightLayer& layer, bool has_bias) {
    const reference::Conv& c = layer.conv;
    const int plane = c.out_height() * c.out_width();
    const Values x = Random(c.batch * c.in_size()), weight = Random(c.weight_size());
    const Values dy = Random(c.batch * c.out_size()), old_dx = Random(x.size());
    const Values bias = has_bias ? Random(c.out_channels) : Values();
    Array y(dy.size()), dx(x.size()), dweight(weight.size());
    c.ForEach([&](int i, int w, int o) {
      y[o] += static_cast<double>(x[i]) * weight[w];
      dx[i] += static_cast<double>(dy[o]) * weight[w];
      dweight[w] += static_cast<double>(dy[o]) * x[i];
    });
    if (has_bias) reference::AddBias(y, ToDouble(bias), plane);
    const Array dbias = reference::BiasGradient(ToDouble(dy), c.out_channels, plane);

    KernelCase forward;
    forward.op = MakeOp(layer.type, Phase::kForward, c.batch, layer.attributes);
    forward.inputs = {x, weight};
    if (has_bias) forward.inputs.push_back(bias);
    forward.outputs = {{y.size(), -1}};
    Check(forward, {y});
    for (const BackwardMode& mode : kModes) {
      const BackwardCase made =
          MakeBackward(MakeOp(layer.type, Phase::kBackward, c.batch, With(layer.attributes, mode)),
                       mode, x, weight, bias, dy, old_dx, dx, dweight, dbias);
      Check(made.test, made.want);
    }

    const BackwardCase plain = MakeBackward(
        MakeOp(layer.type, Phase::kBackward, c.batch, With(layer.attributes, kModes[0])), kModes[0],
        x, weight, bias, dy, old_dx, dx, dweight, dbias);
    const std::vector<Array> gradients =
        Execute<double>(plain.test.op, AllToDouble(plain.test.inputs), plain.test.outputs);
    const std::vector<Array> inputs = AllToDouble(forward.inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckInputGradient(forward.op, inputs, i, ToDouble(dy), gradients[i]);
    }
  }
};

TEST_F(WeightLayerTest, Conv2d) {
  // batch, in channels, height, width, out channels, kernel, stride, padding, groups
  const reference::Conv shapes[] = {
      {2, 3, 5, 5, 4, 3, 3, 1, 1, 1, 1, 1},  // padded
      {1, 2, 7, 6, 3, 3, 2, 2, 1, 0, 1, 1},  // strided, not square
      {2, 4, 6, 5, 6, 3, 3, 1, 2, 1, 1, 2},  // grouped
      {2, 4, 5, 4, 4, 2, 3, 2, 2, 1, 0, 4},  // one channel per group
      {2, 3, 4, 3, 5, 1, 1, 1, 1, 0, 0, 1},  // 1x1: no im2col
      {2, 4, 4, 3, 6, 1, 1, 1, 1, 0, 0, 2},  // 1x1, grouped
      {1, 2, 5, 5, 4, 1, 1, 2, 2, 0, 0, 1},  // 1x1, strided
      {3, 1, 1, 1, 2, 1, 1, 1, 1, 0, 0, 1},  // one element
      {1, 2, 3, 8, 2, 5, 1, 1, 3, 2, 0, 1},  // kernel larger than the input
      {1, 1, 9, 9, 2, 5, 5, 4, 4, 2, 2, 1},
      {2, 2, 4, 9, 3, 1, 7, 1, 1, 0, 3, 1},  // a row, padded only at its ends
      {2, 2, 9, 4, 3, 7, 1, 1, 1, 3, 0, 1},  // a column
  };
  for (const reference::Conv& c : shapes) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(c) + (bias ? " with bias" : ""));
      CheckLayer({OpType::kConv2d, Attributes(c, bias), c}, bias);
    }
  }
}

// A fully connected layer is a convolution of images of one pixel.
TEST_F(WeightLayerTest, Linear) {
  for (const auto& [batch, in, out] :
       {std::array{1, 7, 5}, std::array{6, 13, 11}, std::array{3, 1, 1}, std::array{2, 1, 9}}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(::testing::Message() << batch << ": " << in << " to " << out);
      CheckLayer({OpType::kLinear,
                  {{"in_features", static_cast<double>(in)},
                   {"out_features", static_cast<double>(out)},
                   {"bias", bias ? 1.0 : 0.0}},
                  {batch, in, 1, 1, out, 1, 1, 1, 1, 0, 0, 1}},
                 bias);
    }
  }
}

TEST_F(CpuKernelsTest, RowsOfBands) {
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

// Computes 7 of 512 channels, or 7 of 512 features, at a time.
TEST_F(CpuKernelsTest, SomeOutputsHaveTheBitsOfAll) {
  constexpr int kOutputs = 512, kSome = 7;
  for (const int depth : {32, 40}) {  // times 9, so that each sum spans two blocks of 256 terms
    const reference::Conv all{1, depth, 7, 5, kOutputs, 3, 3, 1, 1, 1, 1, 1};
    const int features = depth * 9;
    const Array image = ToDouble(Random(all.in_size())), x = ToDouble(Random(features));
    const Array weight = ToDouble(Random(all.weight_size()));
    const auto run = [&](int from, int to) {  // returns the outputs of both ops
      const Array rows(weight.begin() + from * features, weight.begin() + to * features);
      reference::Conv some = all;
      some.out_channels = to - from;
      const std::vector<Attribute> linear{{"in_features", static_cast<double>(features)},
                                          {"out_features", static_cast<double>(to - from)},
                                          {"bias", 0}};
      return std::pair(
          Execute<float>(MakeOp(OpType::kConv2d, Phase::kForward, 1, Attributes(some, false)),
                         {image, rows}, {{static_cast<size_t>(some.out_size()), -1}})[0],
          Execute<float>(MakeOp(OpType::kLinear, Phase::kForward, 1, linear), {x, rows},
                         {{static_cast<size_t>(to - from), -1}})[0]);
    };
    const auto [maps, vector] = run(0, kOutputs);
    std::pair<Array, Array> joined;
    for (int from = 0; from < kOutputs; from += kSome) {
      const auto [more_maps, more] = run(from, std::min(from + kSome, kOutputs));
      joined.first.insert(joined.first.end(), more_maps.begin(), more_maps.end());
      joined.second.insert(joined.second.end(), more.begin(), more.end());
    }
    EXPECT_EQ(joined.first, maps);
    EXPECT_EQ(joined.second, vector);
  }
}

TEST_F(CpuKernelsTest, Conv2dDrawn) {
  const reference::Conv c{1, 1, 3, 3, 1, 2, 2, 1, 1, 0, 0, 1};
  Check({MakeOp(OpType::kConv2d, Phase::kForward, 1, Attributes(c, false)),
         {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 0, 0, 1}},
         {{4, -1}}},
        {{6, 8, 12, 14}});
}

std::vector<Attribute> Attributes(const reference::Pool& p, int channels) {
  const auto number = [](int value) { return static_cast<double>(value); };
  return {{"channels", number(channels)},     {"in_height", number(p.in_height)},
          {"in_width", number(p.in_width)},   {"out_height", number(p.out_height)},
          {"out_width", number(p.out_width)}, {"kernel_h", number(p.kernel_h)},
          {"kernel_w", number(p.kernel_w)},   {"stride_h", number(p.stride_h)},
          {"stride_w", number(p.stride_w)},   {"pad_h", number(p.pad_h)},
          {"pad_w", number(p.pad_w)}};
}

TEST_F(CpuKernelsTest, Pooling) {
  constexpr int kBatch = 2, kChannels = 2;
  // planes, in, out, kernel, stride, padding
  const reference::Pool shapes[] = {
      {4, 4, 6, 2, 3, 2, 2, 2, 2, 0, 0},
      {4, 6, 7, 3, 3, 3, 3, 2, 2, 0, 0},  // rounded up along one side
      {4, 7, 5, 4, 3, 3, 3, 2, 2, 1, 1},
      {4, 6, 6, 4, 4, 3, 3, 2, 2, 1, 1},  // rounded up beyond the padding
      {4, 5, 4, 5, 3, 3, 2, 1, 1, 1, 0},  // not square
      {4, 4, 5, 4, 5, 3, 3, 1, 1, 1, 1},  // the size stays, as in Inception's modules
      {4, 3, 5, 1, 1, 3, 5, 1, 1, 0, 0},  // global
      {4, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0},
      {4, 5, 5, 2, 2, 1, 1, 3, 3, 0, 0},  // some elements are in no window
  };
  for (const reference::Pool& p : shapes) {
    for (const bool max : {true, false}) {
      SCOPED_TRACE(::testing::Message()
                   << (max ? "max " : "average ") << p.in_height << "x" << p.in_width << " to "
                   << p.out_height << "x" << p.out_width);
      const OpType type = max ? OpType::kMaxPool2d : OpType::kAvgPool2d;
      std::vector<Attribute> attributes = Attributes(p, kChannels);
      const Op forward = MakeOp(type, Phase::kForward, kBatch, attributes);
      const Op backward = MakeOp(type, Phase::kBackward, kBatch, attributes);
      Values ties = Random(p.in_size());
      for (float& value : ties) value = std::round(value * 4) / 4;
      const Values dy = Random(p.out_size()), old_dx = Random(p.in_size());
      attributes.push_back({"accumulate", 1});
      const Op accumulating = MakeOp(type, Phase::kBackward, kBatch, attributes);
      for (const Values& x : {ties, Distinct(p.in_size())}) {
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
        Check({forward, {x}, {{y.size(), -1}}}, {y});
        std::vector<Values> inputs = {dy};
        if (max) inputs = {x, ToFloat(y), dy};
        Check({backward, inputs, {{dx.size(), -1}}}, {dx});
        const Array gradient = Execute<double>(backward, AllToDouble(inputs), {{dx.size(), -1}})[0];
        if (x != ties) CheckInputGradient(forward, {ToDouble(x)}, 0, ToDouble(dy), gradient);
        inputs.push_back(old_dx);
        const int last = static_cast<int>(inputs.size()) - 1;
        Check({accumulating, inputs, {{dx.size(), last}}}, {dx + ToDouble(old_dx)});
      }
    }
  }
}

//  1 2 3            5 6            windows of 2x2, stride 2, rounded up to 2x2:
//  4 5 6   maximum  8 9   average  3 4.5
//  7 8 9                           7.5 9
TEST_F(CpuKernelsTest, PoolingDrawn) {
  const reference::Pool p{1, 3, 3, 2, 2, 2, 2, 2, 2, 0, 0};
  const Values x{1, 2, 3, 4, 5, 6, 7, 8, 9};
  Check({MakeOp(OpType::kMaxPool2d, Phase::kForward, 1, Attributes(p, 1)), {x}, {{4, -1}}},
        {{5, 6, 8, 9}});
  Check({MakeOp(OpType::kAvgPool2d, Phase::kForward, 1, Attributes(p, 1)), {x}, {{4, -1}}},
        {{3, 4.5, 7.5, 9}});
}

// The gradient of the maximum must be NaN if it reads a wrong y.
TEST_F(CpuKernelsTest, MaxPoolBackwardNeedsItsOutput) {
  const reference::Pool p{1, 2, 2, 1, 1, 2, 2, 2, 2, 0, 0};
  const Op op = MakeOp(OpType::kMaxPool2d, Phase::kBackward, 1, Attributes(p, 1));
  EXPECT_TRUE(std::isnan(Execute<float>(op, {{1, 2, 3, 4}, {5}, {1}}, {{4, -1}})[0][0]));
}

TEST_F(CpuKernelsTest, Lrn) {
  for (const int size : {1, 3, 5, 4}) {
    SCOPED_TRACE(size);
    const reference::Lrn lrn{2, 6, 6, size, 0.3, 0.75, 2};
    std::vector<Attribute> attributes{
        {"channels", 6}, {"height", 3},  {"width", 2}, {"size", static_cast<double>(size)},
        {"alpha", 0.3},  {"beta", 0.75}, {"k", 2}};
    const Values x = Random(2 * 6 * 6), dy = Random(x.size()), old_dx = Random(x.size());
    const Op forward = MakeOp(OpType::kLrn, Phase::kForward, 2, attributes);
    const Op backward = MakeOp(OpType::kLrn, Phase::kBackward, 2, attributes);
    const Array y = Execute<double>(forward, {ToDouble(x)}, {{x.size(), -1}})[0];
    const Array dx = Execute<double>(backward, {ToDouble(x), y, ToDouble(dy)}, {{x.size(), -1}})[0];
    CheckInputGradient(forward, {ToDouble(x)}, 0, ToDouble(dy), dx);
    if (size % 2 == 1) {  // the reference has windows of odd sizes only
      Check({forward, {x}, {{x.size(), -1}}}, {lrn.Forward(ToDouble(x))});
      Check({backward, {x, ToFloat(y), dy}, {{x.size(), -1}}},
            {lrn.Backward(ToDouble(x), ToDouble(dy))});
    }
    attributes.push_back({"accumulate", 1});
    Check({MakeOp(OpType::kLrn, Phase::kBackward, 2, attributes),
           {x, ToFloat(y), dy, old_dx},
           {{x.size(), 3}}},
          {dx + ToDouble(old_dx)});
  }
}

TEST_F(CpuKernelsTest, SoftmaxLoss) {
  constexpr int kBatch = 3;
  for (const int classes : {1, 2, 7}) {
    SCOPED_TRACE(classes);
    const std::vector<Attribute> attributes{{"elements", static_cast<double>(classes)}};
    const Op forward = MakeOp(OpType::kSoftmaxLoss, Phase::kForward, kBatch, attributes);
    const Op backward = MakeOp(OpType::kSoftmaxLoss, Phase::kBackward, kBatch, attributes);
    const Values x = Random(kBatch * classes);
    Values labels(kBatch);
    for (int n = 0; n < kBatch; ++n) labels[n] = static_cast<float>((n * 5 + 1) % classes);
    const Array y = reference::Softmax(ToDouble(x), classes);
    double loss = 0;
    for (int n = 0; n < kBatch; ++n) {
      loss -= std::log(y[n * classes + static_cast<int>(labels[n])]) / kBatch;
    }
    for (const int in_place : {-1, 0}) {
      Check({forward, {x, labels}, {{y.size(), in_place}, {1, -1}}}, {y, {loss}});
      const Array dx = Execute<double>(backward, {y, ToDouble(labels)}, {{y.size(), in_place}})[0];
      const auto loss_of = [&](const Array& scores) {
        return Execute<double>(forward, {scores, ToDouble(labels)},
                               {{y.size(), -1}, {1, -1}})[1][0];
      };
      CheckGradient(loss_of, ToDouble(x), dx, "scores");
    }
  }
  // Large scores do not overflow.
  const Op op = MakeOp(OpType::kSoftmaxLoss, Phase::kForward, 1, {{"elements", 2}});
  Check({op, {{1000, 1000}, {1}}, {{2, 0}, {1, -1}}}, {{0.5, 0.5}, {std::log(2)}});
  for (const double label : {-1.0, 2.0}) {
    EXPECT_THROW(Execute<float>(op, {{1, 2}, {label}}, {{2, -1}, {1, -1}}), InputError);
  }
  // An op that has one of four labels contributes a quarter of its loss and of its gradient.
  const std::vector<Attribute> share{{"elements", 2}, {"mean_over", 4}};
  Check({MakeOp(OpType::kSoftmaxLoss, Phase::kForward, 1, share), {{0, 0}, {1}}, {{2, 0}, {1, -1}}},
        {{0.5, 0.5}, {std::log(2) / 4}});
  Check({MakeOp(OpType::kSoftmaxLoss, Phase::kBackward, 1, share), {{0.5, 0.5}, {1}}, {{2, 0}}},
        {{0.125, -0.125}});
  EXPECT_THROW(Execute<float>(MakeOp(OpType::kSoftmaxLoss, Phase::kForward, 5, share),
                              {Array(10), Array(5)}, {{10, 0}, {1, -1}}),
               InputError);
}

// The operands have odd sizes and are large enough for every path of a blocked matrix product. The
// comparison is in float.
TEST_F(CpuKernelsTest, TheSameBitsWhereverOperandsLie) {
  const reference::Conv c{2, 34, 13, 11, 46, 3, 3, 1, 1, 1, 1, 2};
  const reference::Conv pixel{37, 301, 1, 1, 53, 1, 1, 1, 1, 0, 0, 1};
  const std::vector<Attribute> linear{{"in_features", 301}, {"out_features", 53}, {"bias", 1}};
  for (const bool conv : {true, false}) {
    const reference::Conv& shape = conv ? c : pixel;
    const OpType type = conv ? OpType::kConv2d : OpType::kLinear;
    const std::vector<Attribute> attributes = conv ? Attributes(c, true) : linear;
    const size_t in = shape.batch * shape.in_size(), out = shape.batch * shape.out_size();
    const size_t weights = shape.weight_size(), channels = shape.out_channels;
    const Array x = ToDouble(Random(in)), weight = ToDouble(Random(weights));
    const Array bias = ToDouble(Random(channels)), dy = ToDouble(Random(out));
    const Op forward = MakeOp(type, Phase::kForward, shape.batch, attributes);
    const Op backward =
        MakeOp(type, Phase::kBackward, shape.batch, With(attributes, {true, false, false}));
    const std::vector<KernelCase::Output> gradients{{in, -1}, {weights, -1}, {channels, -1}};
    const auto y = Execute<float>(forward, {x, weight, bias}, {{out, -1}});
    const auto d = Execute<float>(backward, {x, weight, dy}, gradients);
    for (const size_t skip : {1, 2, 3, 7, 64}) {
      EXPECT_EQ(Execute<float>(forward, {x, weight, bias}, {{out, -1}}, skip), y) << skip;
      EXPECT_EQ(Execute<float>(backward, {x, weight, dy}, gradients, skip), d) << skip;
    }
  }
}

TEST_F(CpuKernelsTest, UninitialisedMemoryShows) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Op relu = MakeOp(OpType::kRelu, Phase::kForward, 1, {{"elements", 2}});
  const Op gate = MakeOp(OpType::kRelu, Phase::kBackward, 1, {{"elements", 2}});
  const reference::Pool p{1, 2, 1, 1, 1, 2, 1, 1, 1, 0, 0};
  const Op pool = MakeOp(OpType::kMaxPool2d, Phase::kForward, 1, Attributes(p, 1));
  EXPECT_TRUE(std::isnan(Execute<float>(relu, {{nan, 1}}, {{2, -1}})[0][0]));
  EXPECT_TRUE(std::isnan(Execute<float>(gate, {{nan, 1}, {1, 1}}, {{2, -1}})[0][0]));
  EXPECT_TRUE(std::isnan(Execute<float>(pool, {{nan, 1}}, {{1, -1}})[0][0]));
  EXPECT_TRUE(std::isnan(Execute<float>(pool, {{1, nan}}, {{1, -1}})[0][0]));
}

TEST_F(CpuKernelsTest, UnsupportedTypesAndBadOperandsAreNamed) {
  for (const OpType type : {OpType::kInput, OpType::kOther}) {
    try {
      RunOp<float>(MakeOp(type, Phase::kForward, 1, {}), {}, {}, {}, kSeed);
      FAIL() << "accepted";
    } catch (const InputError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("op '" + std::string(Name(type))), std::string::npos) << what;
      EXPECT_NE(what.find("supported: conv2d"), std::string::npos) << what;
    }
  }
  const Op relu = MakeOp(OpType::kRelu, Phase::kForward, 2, {{"elements", 8}});
  EXPECT_THROW(Execute<float>(relu, {Array(15)}, {{16, -1}}), InputError);
  EXPECT_THROW(Execute<float>(relu, {Array(16)}, {}), InputError);
  EXPECT_THROW(Execute<float>(MakeOp(OpType::kRelu, Phase::kForward, 2, {}), {}, {}), InputError);
  const reference::Conv c{1, 3, 3, 3, 4, 2, 2, 1, 1, 0, 0, 2};
  EXPECT_THROW(Execute<float>(MakeOp(OpType::kConv2d, Phase::kForward, 1, Attributes(c, false)),
                              {Array(27), Array(24)}, {{16, -1}}),
               InputError);
  const Op huge = MakeOp(
      OpType::kConcat, Phase::kForward, 1 << 30,
      {{"parts", 1}, {"height", 0x7fffffff}, {"width", 0x7fffffff}, {"channels_0", 1 << 30}});
  EXPECT_THROW(Execute<float>(huge, {Array(1)}, {{1, -1}}), InputError);
}

// Trains for `iterations` iterations on one batch and returns the losses. Each iteration starts
// with NaN in all memory except the state that lives across iterations.
std::vector<float> Train(const Trace& trace, int iterations) {
  std::vector<Buffer> storage;
  for (const Tensor& tensor : trace.tensors) {
    storage.emplace_back(static_cast<size_t>(tensor.size.count()), 0);
  }
  const auto span = [&](TensorId id) {
    return storage[Index(trace.Root(id))].span.first(
        static_cast<size_t>(trace.tensor(id).size.count()));
  };
  const auto spans = [&](const std::vector<TensorId>& ids) {
    std::vector<std::span<std::byte>> result;
    for (const TensorId id : ids) result.push_back(span(id));
    return result;
  };
  std::mt19937_64 random(1);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TensorKind kind = trace.tensors[i].kind;
    const float width = kind == TensorKind::kInput       ? 1.0f
                        : kind == TensorKind::kParameter ? 0.2f
                                                         : 0.0f;
    std::uniform_real_distribution<float> uniform(-width, width);
    auto* values = reinterpret_cast<float*>(storage[i].span.data());
    for (size_t j = 0; j < storage[i].span.size() / sizeof(float); ++j) {
      if (width > 0) values[j] = uniform(random);
      if (kind == TensorKind::kOptimizerState) values[j] = 0;
      if (trace.tensors[i].dtype == DataType::kInt32) {
        reinterpret_cast<int32_t*>(values)[j] = static_cast<int32_t>(j % 5);  // tokens
      }
    }
  }
  std::vector<float> losses;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      const TensorKind kind = trace.tensors[i].kind;
      if (kind == TensorKind::kActivation || kind == TensorKind::kGradient ||
          kind == TensorKind::kParameterGradient || kind == TensorKind::kScratch) {
        std::memset(storage[i].span.data(), 0xff, storage[i].span.size());
      }
    }
    for (const Op& op : trace.ops) {
      const bool loss = op.type == OpType::kSoftmaxLoss && op.phase == Phase::kForward;
      if (loss) {
        auto* labels = reinterpret_cast<int32_t*>(span(op.inputs[1]).data());
        const auto count = static_cast<int32_t>(op.batch * PositionsOf(op));
        for (int32_t n = 0; n < count; ++n) labels[n] = n % 3;
      }
      RunOp<float>(op, {}, spans(op.inputs), spans(op.outputs), kSeed);
      if (loss) losses.push_back(*reinterpret_cast<float*>(span(op.outputs[1]).data()));
    }
  }
  return losses;
}

TEST_F(CpuKernelsTest, LoweredNetworksTrain) {
  for (const Network& network :
       {spillway::testing::Chain(), spillway::testing::ForkJoin(), spillway::testing::Residual(),
        spillway::testing::Normalized(), spillway::testing::Rectangular(),
        spillway::testing::Dense(), spillway::testing::Gpt(), spillway::testing::Llama(),
        spillway::testing::Vit()}) {
    for (const char* preset : {"torch", "vdnn", "vdnnpp"}) {
      const Trace trace = LowerNetwork(network, {.batch = 4, .preset = preset});
      SCOPED_TRACE(trace.name + " " + preset);
      const std::vector<float> losses = Train(trace, 5);
      ASSERT_EQ(losses.size(), 5u);
      EXPECT_TRUE(std::isfinite(losses.back()));
      EXPECT_LT(losses.back(), losses.front());
      EXPECT_EQ(Train(trace, 5), losses);
    }
  }
}

// The depth-first order trains too, with every treatment of forks.
TEST_F(CpuKernelsTest, NetworksTrainDepthFirst) {
  for (const Network& network :
       {spillway::testing::ForkJoin(), spillway::testing::Residual(),
        spillway::testing::Normalized(), spillway::testing::Rectangular(),
        spillway::testing::Dense(), spillway::testing::Gpt(), spillway::testing::Llama()}) {
    for (const Forks forks : {Forks::kShare, Forks::kShareOne, Forks::kCopy}) {
      Preset preset = FindPreset("torch");
      preset.order = Order::kDepthFirst;
      preset.forks = forks;
      const std::vector<float> losses = Train(LowerNetwork(network, {.batch = 4}, preset), 5);
      EXPECT_TRUE(std::isfinite(losses.back()));
      EXPECT_LT(losses.back(), losses.front()) << network.name();
    }
  }
}

// In-place ops and forks that copy change the accounting but no bit of the losses. Forks have two
// other effects: they add gradients in another order, which changes sums of more than two, and they
// are layers, whose numbers seed the masks of dropout.
TEST_F(CpuKernelsTest, AccountingChangesNoBit) {
  for (const Network& network : {spillway::testing::ForkJoin(), spillway::testing::Residual(),
                                 spillway::testing::Normalized()}) {
    const LoweringOptions options{.batch = 4};
    const std::vector<float> losses = Train(LowerNetwork(network, options), 3);
    for (const bool in_place : {true, false}) {
      for (const Forks forks : {Forks::kShare, Forks::kShareOne, Forks::kCopy}) {
        Preset preset = FindPreset("torch");
        preset.relu_in_place = preset.add_in_place = in_place;
        preset.softmax_in_place = in_place;
        preset.forks = forks;
        const std::vector<float> got = Train(LowerNetwork(network, options, preset), 3);
        if (forks == Forks::kShare || network.name() == "residual") {
          EXPECT_EQ(got, losses) << network.name() << " " << in_place;
        } else if (network.name() == "forkjoin") {
          EXPECT_EQ(got.front(), losses.front());
          EXPECT_NEAR(got.back(), losses.back(), 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::testing
