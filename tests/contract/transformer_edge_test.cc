// Transformers at the edges of what can be built, drawn at random: odd lengths, one head, one word,
// one sample, one position, groups of every size. In both precisions the two kinds of attention,
// whose kernels have nothing in common, agree, with all options of training, and no policy changes
// a bit. More heads than features are refused by name (transformer_test.cc).

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>

#include "sim/core/check.h"
#include "tests/contract/given_training.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

struct DrawnTransformer {
  explicit DrawnTransformer(uint32_t seed) {
    std::mt19937 random(seed);
    const auto draw = [&](std::initializer_list<int64_t> values) {
      return values.begin()[random() % values.size()];
    };
    const int64_t heads = draw({1, 1, 2, 3, 4});
    const int64_t width = heads * 2 * draw({1, 1, 2, 3});
    const int64_t length = draw({1, 1, 2, 5, 9});
    const int64_t layers = draw({1, 2});
    vocabulary = draw({1, 2, 7});
    options.batch = draw({1, 1, 2, 3});
    if (draw({0, 1}) == 0) {
      name = fmt::format("gpt({},{},{},{})@{}", width, layers, heads, vocabulary, length);
    } else {
      const int64_t kv_heads = draw({1, heads % 2 == 0 ? 2 : 1, heads});
      name = fmt::format("llama({},{},{},{},{},{})@{}", width, layers, heads, kv_heads,
                         draw({1, 3, 8}), vocabulary, length);
    }
    options.optimizer = draw({0, 1}) == 0 ? OpType::kSgd : OpType::kAdamW;
    options.accumulate = draw({1, 1, 2, 3});
    if (draw({0, 1}) == 1) options.clip_norm = 0.1;
    options.loss_chunks = std::min(draw({1, 2, 3}), options.batch * length);
  }

  std::string name;
  int64_t vocabulary = 1;
  LoweringOptions options;
};

class TransformerEdges : public GivenTraining {};

TEST_F(TransformerEdges, BothKindsOfAttentionAgreeInBothPrecisions) {
  for (uint32_t seed = 0; seed < 80; ++seed) {
    const DrawnTransformer drawn(seed);
    SCOPED_TRACE(fmt::format("{} {}:{}", seed, drawn.name, drawn.options.batch));
    const Network fused = BuildNetwork(drawn.name, AttentionKind::kFused);
    const Network math = BuildNetwork(drawn.name, AttentionKind::kMath);
    const Trained exact = Train(fused, drawn.options);
    EXPECT_NEAR(Train(math, drawn.options).loss, exact.loss, 1e-5);
    LoweringOptions in_short = drawn.options;
    in_short.precision = Precision::kBf16;
    const float of_fused = Train(fused, in_short).loss;
    EXPECT_NEAR(of_fused, exact.loss, 0.1);
    EXPECT_NEAR(Train(math, in_short).loss, of_fused, 0.1);
    if (drawn.vocabulary == 1) {
      EXPECT_EQ(exact.loss, 0);
    } else {
      EXPECT_GT(exact.loss, 0);
    }
  }
}

TEST_F(TransformerEdges, NoPolicyChangesABit) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    DrawnTransformer drawn(seed);
    if (seed % 2 == 1) drawn.options.precision = Precision::kBf16;
    SCOPED_TRACE(fmt::format("{} {}:{}", seed, drawn.name, drawn.options.batch));
    const AttentionKind kind = seed % 4 < 2 ? AttentionKind::kFused : AttentionKind::kMath;
    const Trace trace = LowerNetwork(BuildNetwork(drawn.name, kind), drawn.options);
    const auto run = [&](const char* policy, Bytes memory) {
      return testing::RunOnCpu({Borrow(trace), device_, Borrow(cost_), memory},
                               *registry_.Make(policy), 2, seed);
    };
    const Outcome in_core = run("liveness", Bytes::GiB(1));
    ASSERT_TRUE(std::isfinite(in_core.execution->loss.value()));
    int fitted = 0;
    for (const char* policy : {"vdnn-all", "superneurons", "mxnet"}) {
      const Outcome moved = run(policy, LayerBound(trace, device_.alignment) * 2);
      if (!moved.report.fits()) continue;
      ++fitted;
      EXPECT_THAT(Check(*moved.trace, moved.report), IsEmpty());
      EXPECT_EQ(moved.execution->weights_digest, in_core.execution->weights_digest) << policy;
    }
    EXPECT_GE(fitted, 1);
  }
}

}  // namespace
}  // namespace spillway::testing
