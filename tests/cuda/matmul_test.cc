// Compares products on the GPU with sums in double, for every candidate of cuBLASLt.

#include "backend/cuda/matmul_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/half_types.h"
#include "tests/testing/kernel_cases.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

DataType InputType(MatmulType type) {
  return type == MatmulType::kBf16 || type == MatmulType::kBf16ToFp32 ? DataType::kBfloat16
                                                                      : DataType::kFloat32;
}
DataType OutputType(MatmulType type) {
  return type == MatmulType::kBf16 ? DataType::kBfloat16 : DataType::kFloat32;
}

// The tolerance relative to the sum of the magnitudes of all that is added. An operand of tf32
// loses 2^-11 and an output of bf16 2^-8, a second time if the parts of a split sum are rounded.
double Tolerance(MatmulType type) {
  switch (type) {
    case MatmulType::kFp32:
    case MatmulType::kBf16ToFp32:
      return 1e-6;
    case MatmulType::kTf32:
      return 0x1p-10;
    case MatmulType::kBf16:
      return 0x1p-7;
  }
  return 0;
}

// One product with its operands in fp32. All elements are representable in the type of the shape.
struct MatmulCase {
  MatmulShape shape;
  float alpha = 1, beta = 0;
  Values a = {}, b = {}, c = {}, vector = {};

  // Calls visit(a, b, c) with the offsets of the operands of each product.
  template <typename Visitor>
  void ForEachProduct(const Visitor& visit) const {
    const auto& [outer, middle, inner] = shape.levels;
    for (int64_t i = 0; i < outer.count; ++i) {
      for (int64_t j = 0; j < middle.count; ++j) {
        for (int64_t l = 0; l < inner.count; ++l) {
          visit(i * outer.a + j * middle.a + l * inner.a, i * outer.b + j * middle.b + l * inner.b,
                i * outer.c + j * middle.c + l * inner.c);
        }
      }
    }
  }

  float A(int64_t at, int64_t i, int64_t p) const {
    return a[at + (shape.transpose_a ? p * shape.row_a + i : i * shape.row_a + p)];
  }
  float B(int64_t at, int64_t p, int64_t j) const {
    return b[at + (shape.transpose_b ? j * shape.row_b + p : p * shape.row_b + j)];
  }

  // Returns C, and the sums of the magnitudes of all that is added.
  std::pair<Array, Array> Expected() const {
    Array want(c.size()), magnitude(c.size());
    std::vector<bool> written(c.size());
    ForEachProduct([&](int64_t a_at, int64_t b_at, int64_t c_at) {
      for (int64_t i = 0; i < shape.m; ++i) {
        for (int64_t j = 0; j < shape.n; ++j) {
          const int64_t at = c_at + i * shape.row_c + j;
          if (!written[at]) {
            written[at] = true;
            const double start = (beta == 0 ? 0 : double{beta} * c[at]) +
                                 (shape.epilogue == MatmulEpilogue::kBias ? double{vector[j]} : 0);
            want[at] = start;
            magnitude[at] = std::abs(start);
          }
          for (int64_t p = 0; p < shape.k; ++p) {
            const double product = double{alpha} * A(a_at, i, p) * B(b_at, p, j);
            want[at] += product;
            magnitude[at] += std::abs(product);
          }
        }
      }
    });
    for (size_t i = 0; i < c.size(); ++i) {
      if (!written[i]) want[i] = c[i];
    }
    return {want, magnitude};
  }
};

class MatmulTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      RequireDevice(0);
      library_.emplace();
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << "NOT TESTED: " << error.what();
    }
  }

  Values Random(int64_t count, DataType type) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(count);
    for (float& value : values) value = uniform(random_);
    Round(values, type);
    return values;
  }

  // Returns a case whose operands have just the elements that the shape reads and writes.
  MatmulCase Make(const MatmulShape& shape, float alpha = 1, float beta = 0) {
    MatmulCase made{.shape = shape, .alpha = alpha, .beta = beta};
    int64_t a = 0, b = 0, c = 0;
    made.ForEachProduct([&](int64_t a_at, int64_t b_at, int64_t c_at) {
      a = std::max(a, a_at), b = std::max(b, b_at), c = std::max(c, c_at);
    });
    const auto extent = [](int64_t rows, int64_t columns, bool transposed, int64_t row) {
      return transposed ? (columns - 1) * row + rows : (rows - 1) * row + columns;
    };
    const DataType in = InputType(shape.type);
    const DataType out = OutputType(shape.type);
    made.a = Random(a + extent(shape.m, shape.k, shape.transpose_a, shape.row_a), in);
    made.b = Random(b + extent(shape.k, shape.n, shape.transpose_b, shape.row_b), in);
    made.c = Random(c + extent(shape.m, shape.n, false, shape.row_c), out);
    made.vector = Random(shape.epilogue == MatmulEpilogue::kBias ? shape.n : shape.m, out);
    return made;
  }

  // Multiplies and returns C. Overwrites `vector` with the epilogue's.
  Values Multiply(const MatmulCase& test, const std::string& name, Values* vector = nullptr) {
    const DataType in = InputType(test.shape.type);
    const DataType out = OutputType(test.shape.type);
    const DeviceBuffer a = Upload(test.a, in);
    const DeviceBuffer b = Upload(test.b, in);
    const DeviceBuffer c = Upload(test.c, out);
    const DeviceBuffer v = Upload(test.vector, out);
    const DeviceBuffer workspace(library_->Workspace(test.shape, name, {}));
    const bool epilogue = test.shape.epilogue != MatmulEpilogue::kNone;
    library_->Multiply(test.shape, name, test.alpha, a.data(), b.data(), test.beta, c.data(),
                       epilogue ? v.data() : nullptr, workspace.range(), {});
    SPILLWAY_CUDA_CALL(cudaDeviceSynchronize());
    if (vector != nullptr) *vector = Download(v.range(), out);
    return Download(c.range(), out);
  }

  void Check(const MatmulCase& test, const std::string& what) {
    const auto& [want, magnitude] = test.Expected();
    std::vector<std::string> names{"default"};
    for (const MatmulCandidate& candidate : library_->Candidates(test.shape, {})) {
      names.push_back(candidate.name);
    }
    ASSERT_GT(names.size(), 1u) << what;
    for (const std::string& name : names) {
      const Values got = Multiply(test, name);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], Tolerance(test.shape.type) * magnitude[i])
            << what << ", " << name << ", element " << i;
      }
      EXPECT_EQ(got, Multiply(test, name)) << what << ", " << name << ": other bits";
    }
  }

  std::optional<MatmulLibrary> library_;
  std::mt19937_64 random_{1};
};

constexpr MatmulType kTypes[] = {MatmulType::kFp32, MatmulType::kTf32, MatmulType::kBf16,
                                 MatmulType::kBf16ToFp32};

// Returns a dense product.
MatmulShape Dense(MatmulType type, int64_t m, int64_t n, int64_t k, bool transpose_a = false,
                  bool transpose_b = false) {
  return {.type = type,
          .m = m,
          .n = n,
          .k = k,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .row_a = transpose_a ? m : k,
          .row_b = transpose_b ? k : n,
          .row_c = n};
}

TEST_F(MatmulTest, EveryCandidateMatchesSumsInDouble) {
  struct Extents {
    int64_t m, n, k;
  };
  for (const MatmulType type : kTypes) {
    for (const auto& [m, n, k] : {Extents{64, 96, 128},
                                  {1, 1, 1},
                                  {7, 5, 3},
                                  {33, 17, 65},
                                  {1, 40, 24},
                                  {40, 1, 24},
                                  {48, 64, 520}}) {
      for (const int transposes : {0, 1, 2, 3}) {
        const MatmulShape shape =
            Dense(type, m, n, k, (transposes & 1) != 0, (transposes & 2) != 0);
        Check(Make(shape), "type " + std::to_string(static_cast<int>(type)) + " " +
                               std::to_string(m) + "x" + std::to_string(n) + "x" +
                               std::to_string(k) + " transposes " + std::to_string(transposes));
      }
    }
  }
}

TEST_F(MatmulTest, ScalesAndAdds) {
  for (const MatmulType type : kTypes) {
    Check(Make(Dense(type, 24, 40, 16), 0.5f, 0.25f), "scaled");
    Check(Make(Dense(type, 24, 40, 16, true), 1, 1), "accumulated");
  }
}

TEST_F(MatmulTest, LeavesTheGapsBetweenRows) {
  for (const MatmulType type : kTypes) {
    MatmulShape shape = Dense(type, 9, 8, 16);
    shape.row_a = 24;
    shape.row_b = 16;
    shape.row_c = 32;
    Check(Make(shape), "gaps");
  }
}

// The products of attention: positions x heads x features in memory, scores by head.
TEST_F(MatmulTest, MultipliesSamplesAndGroupedHeads) {
  const int64_t batch = 3, rows = 10, kv_heads = 2, group = 3, features = 8;
  const int64_t heads = kv_heads * group;
  for (const MatmulType type : kTypes) {
    MatmulShape scores{.type = type,
                       .m = rows,
                       .n = rows,
                       .k = features,
                       .transpose_b = true,
                       .row_a = heads * features,
                       .row_b = kv_heads * features,
                       .row_c = rows};
    const int64_t square = rows * rows;
    scores.levels = {{{batch, rows * heads * features, rows * kv_heads * features, heads * square},
                      {kv_heads, group * features, features, group * square},
                      {group, features, 0, square}}};
    scores.alignment = 4;
    Check(Make(scores, 0.5f), "scores");
    // The gradient of the keys adds up the queries of a group.
    MatmulShape keys{.type = type,
                     .m = rows,
                     .n = features,
                     .k = rows,
                     .transpose_a = true,
                     .row_a = rows,
                     .row_b = heads * features,
                     .row_c = kv_heads * features};
    keys.levels = {{{batch, heads * square, rows * heads * features, rows * kv_heads * features},
                    {kv_heads, group * square, group * features, features},
                    {group, square, features, 0}}};
    keys.alignment = 4;
    if (type == MatmulType::kBf16) continue;  // each partial sum is rounded
    Check(Make(keys, 1, 0), "keys");
    Check(Make(keys, 1, 1), "accumulated keys");
  }
}

TEST_F(MatmulTest, AddsTheBias) {
  for (const MatmulType type : kTypes) {
    for (const int64_t n : {8, 48, 33}) {
      MatmulShape shape = Dense(type, 20, n, 32, false, true);
      shape.epilogue = MatmulEpilogue::kBias;
      if (library_->Candidates(shape, {}).empty()) {
        std::cout << "[   NOTE   ] no bias for type " << static_cast<int>(type) << ", " << n
                  << " columns\n";
        continue;
      }
      Check(Make(shape), "bias");
    }
  }
}

TEST_F(MatmulTest, ComputesTheBiasGradient) {
  for (const MatmulType type : kTypes) {
    for (const int64_t m : {16, 33}) {
      MatmulShape shape = Dense(type, m, 24, 50, true);
      shape.epilogue = MatmulEpilogue::kBiasGradient;
      if (library_->Candidates(shape, {}).empty()) {
        std::cout << "[   NOTE   ] no bias gradient for type " << static_cast<int>(type) << ", "
                  << m << " rows\n";
        continue;
      }
      const MatmulCase test = Make(shape);
      Check(test, "bias gradient");
      for (const MatmulCandidate& candidate : library_->Candidates(shape, {})) {
        Values sums;
        Multiply(test, candidate.name, &sums);
        for (int64_t i = 0; i < m; ++i) {
          double want = 0, magnitude = 0;
          for (int64_t p = 0; p < shape.k; ++p) {
            want += test.A(0, i, p);
            magnitude += std::abs(test.A(0, i, p));
          }
          EXPECT_NEAR(sums[i], want, Tolerance(type) * magnitude) << candidate.name << " " << i;
        }
      }
    }
  }
}

// Long sums are those that cuBLASLt splits.
TEST_F(MatmulTest, EveryCandidateGivesTheSameBits) {
  for (const MatmulType type : kTypes) {
    const MatmulCase test = Make(Dense(type, 64, 48, 8192, true));
    for (const MatmulCandidate& candidate : library_->Candidates(test.shape, {})) {
      const Values first = Multiply(test, candidate.name);
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(first == Multiply(test, candidate.name), candidate.deterministic)
            << candidate.name;
      }
    }
  }
}

TEST_F(MatmulTest, TheDefaultNeedsNoWorkspace) {
  for (const MatmulType type : kTypes) {
    EXPECT_EQ(library_->Workspace(Dense(type, 8192, 3072, 768, false, true), "default", {}),
              Bytes(0));
  }
}

TEST_F(MatmulTest, NamesRunOnOtherShapesAndInOtherLibraries) {
  const MatmulShape shape = Dense(MatmulType::kTf32, 512, 512, 512);
  const std::vector<MatmulCandidate> candidates = library_->Candidates(shape, {});
  EXPECT_GE(candidates.size(), 3u);
  MatmulLibrary other;
  for (const MatmulCandidate& candidate : candidates) {
    std::cout << "[   NOTE   ] " << candidate.name << " " << FormatBytes(candidate.workspace)
              << "\n";
    EXPECT_EQ(other.Workspace(shape, candidate.name, {}), candidate.workspace) << candidate.name;
    EXPECT_EQ(std::count_if(candidates.begin(), candidates.end(),
                            [&](const auto& c) { return c.name == candidate.name; }),
              1);
  }
  EXPECT_EQ(other.Workspace(shape, "default", {}), Bytes(0));
  // A shape for which the heuristic proposes other algorithms.
  const MatmulCase test = Make(Dense(MatmulType::kTf32, 64, 96, 128));
  const auto& [want, magnitude] = test.Expected();
  const Values got = Multiply(test, candidates[0].name);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], Tolerance(MatmulType::kTf32) * magnitude[i]);
  }
}

TEST_F(MatmulTest, RefusesWhatIsNoProduct) {
  const MatmulShape shape = Dense(MatmulType::kBf16, 64, 64, 64);
  for (const char* name : {"", "fast", "id", "id-1", "id9999", "tile20", "id66_", "id66__tile1",
                           "id66_tile99999", "id66_tile20x", "stages3_id66"}) {
    EXPECT_THROW(library_->Workspace(shape, name, {}), InputError) << name;
  }
  MatmulShape wrong = shape;
  wrong.m = 0;
  EXPECT_THROW(library_->Candidates(wrong, {}), InputError);
  wrong = shape;
  wrong.row_a = 63;
  EXPECT_THROW(library_->Candidates(wrong, {}), InputError);
  wrong = shape;
  wrong.alignment = 12;
  EXPECT_THROW(library_->Candidates(wrong, {}), InputError);
  wrong = shape;
  wrong.levels[1].count = 0;
  EXPECT_THROW(library_->Candidates(wrong, {}), InputError);
  wrong = shape;
  wrong.epilogue = MatmulEpilogue::kBiasGradient;
  wrong.levels[0] = {2, 4096, 4096, 4096};
  EXPECT_THROW(library_->Candidates(wrong, {}), InputError);
}

}  // namespace
}  // namespace spillway::testing
