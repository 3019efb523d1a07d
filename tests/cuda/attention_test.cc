// Compares fused attention on the GPU with plain loops in double.

#include "backend/cuda/attention_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/half_types.h"
#include "tests/testing/kernel_cases.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

DataType ElementType(const AttentionShape& s) {
  return s.type == AttentionType::kBf16 ? DataType::kBfloat16 : DataType::kFloat16;
}

// Attention and its gradients in double.
struct Attention {
  AttentionShape shape;
  Values q, k, v, dy;
  Array y = {}, log_sum_exp = {}, dq = {}, dk = {}, dv = {};

  int64_t Query(int64_t n, int64_t h, int64_t t) const {
    return ((n * shape.rows + t) * shape.heads + h) * shape.head_dim;
  }
  int64_t Key(int64_t n, int64_t h, int64_t t) const {
    return ((n * shape.rows + t) * shape.kv_heads + h * shape.kv_heads / shape.heads) *
           shape.head_dim;
  }

  void Compute() {
    y = dq = Array(q.size());
    dk = dv = Array(k.size());
    for (int64_t n = 0; n < shape.batch; ++n) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        for (int64_t t = 0; t < shape.rows; ++t) ComputeRow(n, h, t);
      }
    }
  }

 private:
  void ComputeRow(int64_t n, int64_t h, int64_t t) {
    const int64_t d = shape.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    const int64_t query = Query(n, h, t);
    const int64_t count = shape.causal ? t + 1 : shape.rows;
    const auto dot = [d](const Values& a, int64_t i, const Values& b, int64_t j) {
      double sum = 0;
      for (int64_t f = 0; f < d; ++f) sum += double{a[i + f]} * b[j + f];
      return sum;
    };
    Array p(count), dp(count);
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) {
      p[j] = std::exp(scale * dot(q, query, k, Key(n, h, j)));
      dp[j] = dot(dy, query, v, Key(n, h, j));
      sum += p[j];
    }
    log_sum_exp.push_back(std::log(sum));
    double weighted = 0;
    for (int64_t j = 0; j < count; ++j) {
      p[j] /= sum;
      weighted += p[j] * dp[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t key = Key(n, h, j);
      const double ds = scale * p[j] * (dp[j] - weighted);
      for (int64_t f = 0; f < d; ++f) {
        y[query + f] += p[j] * v[key + f];
        dq[query + f] += ds * k[key + f];
        dk[key + f] += ds * q[query + f];
        dv[key + f] += p[j] * dy[query + f];
      }
    }
  }
};

class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      RequireDevice(0);
      fast_ = std::make_unique<AttentionLibrary>(false);
      deterministic_ = std::make_unique<AttentionLibrary>(true);
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << "NOT TESTED: " << error.what();
    }
  }

  Values Random(int64_t count, DataType type) {
    std::uniform_real_distribution<float> uniform(-2, 2);
    Values values(count);
    for (float& value : values) value = uniform(random_);
    Round(values, type);
    return values;
  }

  Attention Make(const AttentionShape& s) {
    const int64_t queries = s.batch * s.rows * s.heads * s.head_dim;
    const int64_t keys = s.batch * s.rows * s.kv_heads * s.head_dim;
    const DataType type = ElementType(s);
    Attention made{.shape = s,
                   .q = Random(queries, type),
                   .k = Random(keys, type),
                   .v = Random(keys, type),
                   .dy = Random(queries, type)};
    made.Compute();
    return made;
  }

  struct Forward {
    Values y, log_sum_exp;
  };
  static Forward RunForward(AttentionLibrary& library, const Attention& test, bool training) {
    const DataType type = ElementType(test.shape);
    const DeviceBuffer q = Upload(test.q, type);
    const DeviceBuffer k = Upload(test.k, type);
    const DeviceBuffer v = Upload(test.v, type);
    const DeviceBuffer y(q.size());
    const DeviceBuffer sums = Upload(Values(test.log_sum_exp.size(), NAN), DataType::kFloat32);
    const DeviceBuffer workspace(library.ForwardWorkspace(test.shape, training, {}));
    library.Forward(test.shape, q.data(), k.data(), v.data(), y.data(),
                    training ? sums.floats() : nullptr, workspace.range(), {});
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
    return {Download(y.range(), type), Download(sums.range(), DataType::kFloat32)};
  }

  // Returns dq, dk and dv.
  static std::vector<Values> RunBackward(AttentionLibrary& library, const Attention& test) {
    const DataType type = ElementType(test.shape);
    const DeviceBuffer q = Upload(test.q, type);
    const DeviceBuffer k = Upload(test.k, type);
    const DeviceBuffer v = Upload(test.v, type);
    const DeviceBuffer y = Upload(ToFloat(test.y), type);
    const DeviceBuffer dy = Upload(test.dy, type);
    const DeviceBuffer sums = Upload(ToFloat(test.log_sum_exp), DataType::kFloat32);
    const DeviceBuffer dq(q.size()), dk(k.size()), dv(v.size());
    const DeviceBuffer workspace(library.BackwardWorkspace(test.shape, {}));
    SPILLWAY_CUDA_CALL(cudaMemset(workspace.data(), 0xff, workspace.size().count()));
    library.Backward(test.shape, q.data(), k.data(), v.data(), y.data(), dy.data(), sums.floats(),
                     dq.data(), dk.data(), dv.data(), workspace.range(), {});
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
    return {Download(dq.range(), type), Download(dk.range(), type), Download(dv.range(), type)};
  }

  // The root of the mean square of the errors is at most 1 % of that of the result, and the largest
  // error at most 4 % of the largest result. Probabilities and gradients of scores are rounded to
  // the type (bf16: 8 bits) before they are multiplied. If the result is 0, as gradients of a
  // single position are, the rounding of fp32 remains.
  static void ExpectClose(const Values& got, const Array& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    constexpr double kRounding = 1e-5;
    double errors = 0, squares = 0, worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(got[i] - want[i]);
      ASSERT_FALSE(std::isnan(error)) << what << ": NaN at " << i;
      errors += error * error;
      squares += want[i] * want[i];
      worst = std::max(worst, error);
      largest = std::max(largest, std::abs(want[i]));
    }
    EXPECT_LE(std::sqrt(errors), 0.01 * std::sqrt(squares) + kRounding) << what;
    EXPECT_LE(worst, 0.04 * largest + kRounding) << what;
  }

  std::unique_ptr<AttentionLibrary> fast_, deterministic_;
  std::mt19937_64 random_{1};
};

class AttentionShapeTest : public AttentionTest,
                           public ::testing::WithParamInterface<AttentionShape> {};

TEST_P(AttentionShapeTest, ForwardMatchesLoops) {
  const Attention test = Make(GetParam());
  const Forward inference = RunForward(*fast_, test, false);
  ExpectClose(inference.y, test.y, "y in inference");
  if (GetParam().head_dim > 128) return;
  const Forward training = RunForward(*fast_, test, true);
  ExpectClose(training.y, test.y, "y in training");
  ExpectClose(training.log_sum_exp, test.log_sum_exp, "log_sum_exp");
  const Forward again = RunForward(*fast_, test, true);
  EXPECT_EQ(training.y, again.y);
  EXPECT_EQ(training.log_sum_exp, again.log_sum_exp);
}

TEST_P(AttentionShapeTest, BackwardMatchesLoops) {
  const Attention test = Make(GetParam());
  if (GetParam().head_dim > 128) {
    EXPECT_THROW(fast_->BackwardWorkspace(test.shape, {}), InputError);
    return;
  }
  for (AttentionLibrary* library : {fast_.get(), deterministic_.get()}) {
    const std::string which = library == fast_.get() ? ", fast" : ", deterministic";
    const std::vector<Values> got = RunBackward(*library, test);
    ExpectClose(got[0], test.dq, "dq" + which);
    ExpectClose(got[1], test.dk, "dk" + which);
    ExpectClose(got[2], test.dv, "dv" + which);
    if (library == deterministic_.get()) {
      EXPECT_EQ(got, RunBackward(*library, test));
    }
  }
}

// Returns a name such as "bf16_batch_2_rows_64_heads_4_of_2_features_64_causal".
std::string ShapeName(const ::testing::TestParamInfo<AttentionShape>& info) {
  const AttentionShape& s = info.param;
  return std::string(s.type == AttentionType::kBf16 ? "bf16" : "fp16") + "_batch_" +
         std::to_string(s.batch) + "_rows_" + std::to_string(s.rows) + "_heads_" +
         std::to_string(s.heads) + "_of_" + std::to_string(s.kv_heads) + "_features_" +
         std::to_string(s.head_dim) + (s.causal ? "_causal" : "");
}

constexpr AttentionType kBf16 = AttentionType::kBf16;
//              type, batch, rows, heads, key heads, features, causal
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionShapeTest,
                         ::testing::Values(AttentionShape{kBf16, 2, 64, 4, 4, 64, true},
                                           AttentionShape{kBf16, 3, 1, 2, 2, 64, true},
                                           AttentionShape{kBf16, 1, 7, 1, 1, 8, true},
                                           AttentionShape{kBf16, 2, 77, 6, 2, 40, true},
                                           AttentionShape{kBf16, 1, 197, 3, 3, 64, false},
                                           AttentionShape{kBf16, 2, 130, 8, 1, 128, true},
                                           AttentionShape{kBf16, 1, 129, 2, 1, 72, false},
                                           AttentionShape{kBf16, 1, 65, 2, 2, 256, true},
                                           AttentionShape{AttentionType::kFp16, 2, 96, 4, 2, 64,
                                                          true}),
                         ShapeName);

TEST_F(AttentionTest, DeterminismCostsWorkspace) {
  const AttentionShape shape{kBf16, 2, 512, 8, 8, 64, true};
  const Bytes fast = fast_->BackwardWorkspace(shape, {});
  const Bytes deterministic = deterministic_->BackwardWorkspace(shape, {});
  std::cout << "[   NOTE   ] backward of 2 x 512, 8 heads of 64: " << FormatBytes(fast)
            << ", deterministic " << FormatBytes(deterministic) << "\n";
  EXPECT_GT(deterministic, fast);
}

TEST_F(AttentionTest, RefusesOtherShapes) {
  for (const AttentionShape& shape :
       {AttentionShape{kBf16, 0, 64, 4, 4, 64, false}, AttentionShape{kBf16, 1, 0, 4, 4, 64, false},
        AttentionShape{kBf16, 1, 64, 4, 3, 64, false},
        AttentionShape{kBf16, 1, 64, 4, 0, 64, false},
        AttentionShape{kBf16, 1, 64, 4, 4, 12, false},
        AttentionShape{kBf16, 1, 64, 4, 4, 264, false}}) {
    EXPECT_THROW(fast_->ForwardWorkspace(shape, false, {}), InputError);
    EXPECT_THROW(fast_->BackwardWorkspace(shape, {}), InputError);
  }
}

TEST_F(AttentionTest, RefusesASmallWorkspace) {
  const AttentionShape shape{kBf16, 1, 64, 1, 1, 64, false};
  EXPECT_THROW(fast_->Backward(shape, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                               nullptr, nullptr, {}, {}),
               InputError);
}

}  // namespace
}  // namespace spillway::testing
