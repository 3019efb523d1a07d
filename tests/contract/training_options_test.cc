// Micro-batches, clipping and the loss in chunks on real bytes: they compute what they stand for,
// and no policy, memory or order changes a bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "sim/core/check.h"
#include "tests/contract/given_training.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

using TrainingOptionsTest = GivenTraining;

// Batch normalisation works on a batch, and dropout draws numbers for each layer, so the networks
// that have them are left out.
TEST_F(TrainingOptionsTest, MicroBatchesAddUpToOneBatch) {
  for (const Network& network :
       {testing::Chain(), testing::ForkJoin(), testing::Gpt(), testing::Llama(), testing::Vit()}) {
    for (const char* preset : {"torch", "superneurons"}) {
      SCOPED_TRACE(network.name() + " " + preset);
      const Trained whole = Train(network, {.batch = 6, .preset = preset});
      for (const int64_t parts : {2, 3, 6}) {
        ExpectNear(Train(network, {.batch = 6 / parts, .preset = preset, .accumulate = parts}),
                   whole, 2e-5);
      }
    }
  }
}

TEST_F(TrainingOptionsTest, ALossInChunksIsTheSameLoss) {
  const Network bert = BuildBert("bert", 5, {.width = 6, .layers = 1, .heads = 2, .vocabulary = 7},
                                 AttentionKind::kFused);
  for (const Network& network : {testing::Gpt(), testing::Llama(), bert}) {
    SCOPED_TRACE(network.name());
    const int64_t tokens = 3 * network.layer(network.image()).output.length;
    const Trained whole = Train(network, {.batch = 3});
    for (const int64_t chunks : {int64_t{2}, int64_t{4}, tokens}) {
      ExpectNear(Train(network, {.batch = 3, .loss_chunks = chunks}), whole, 2e-5);
    }
    ExpectNear(Train(network, {.batch = 1, .accumulate = 3, .loss_chunks = 2}), whole, 2e-5);
  }
}

// The momentum of SGD after the first step is the gradient plus the decay of the weight.
TEST_F(TrainingOptionsTest, ClippingScalesAllGradientsByOneFactor) {
  const Network network = testing::Gpt();
  const Trained free = Train(network, {.batch = 2}, 1);
  const Trained start = Train(network, {.batch = 2, .clip_norm = 1e-30}, 1);
  // Without a gradient, the momentum is the decay alone.
  const auto gradient = [&](const Trained& trained, const std::string& name, size_t i) {
    return double{trained.values.at(name)[i]} - double{start.values.at(name)[i]};
  };
  double squares = 0;
  for (const auto& [name, values] : free.values) {
    if (!name.ends_with("_momentum")) continue;
    for (size_t i = 0; i < values.size(); ++i) squares += std::pow(gradient(free, name, i), 2);
  }
  const double norm = std::sqrt(squares);
  ASSERT_GT(norm, 0.1);
  for (const double limit : {0.01, norm / 2, norm * 2}) {
    const Trained clipped = Train(network, {.batch = 2, .clip_norm = limit}, 1);
    const double factor = std::min(1.0, limit / (norm + 1e-6));
    for (const auto& [name, values] : clipped.values) {
      if (!name.ends_with("_momentum")) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(gradient(clipped, name, i), factor * gradient(free, name, i), 1e-6 * norm)
            << name;
      }
    }
  }
}

TEST_F(TrainingOptionsTest, NoPolicyChangesABit) {
  const LoweringOptions cases[] = {
      {.batch = 2, .accumulate = 3},
      {.batch = 2, .optimizer = OpType::kAdamW, .clip_norm = 0.1},
      {.batch = 3, .loss_chunks = 4},
      {.batch = 2,
       .precision = Precision::kBf16,
       .accumulate = 2,
       .clip_norm = 0.1,
       .loss_chunks = 3},
      {.batch = 2, .preset = "superneurons", .accumulate = 2, .clip_norm = 0.1, .loss_chunks = 2}};
  for (const LoweringOptions& options : cases) {
    const Trace trace = LowerNetwork(testing::Gpt(), options);
    SCOPED_TRACE(&options - cases);
    const Outcome reference = testing::RunOnCpu(
        {Borrow(trace), device_, Borrow(cost_), Bytes::GiB(1)}, *registry_.Make("liveness"), 2);
    const Bytes bound = LayerBound(trace, device_.alignment);
    for (const char* policy :
         {"liveness", "network-wide", "vdnn-all", "vdnn-conv:order=prefetch-first", "vdnn-dyn",
          "vdnnpp", "vdnnpp:offload=all,release=lazy", "caffe", "torch", "mxnet", "dtr", "capuchin",
          "tensorflow:target=60,life=0", "liveness:parameters=outside", "superneurons",
          "superneurons:cache=none,recompute=memory", "ucudnn:workspace=4KiB", "joint:effort=20"}) {
      int fitted = 0;
      for (const double factor : {1.0, 1.3, 2.0, 50.0}) {
        Draft setup{Borrow(trace), device_, Borrow(cost_),
                    Bytes(static_cast<int64_t>(static_cast<double>(bound.count()) * factor))};
        for (const std::optional<uint64_t> drain_seed : {std::optional<uint64_t>(), {1}}) {
          const Outcome executed = testing::RunOnCpu(setup, *registry_.Make(policy), 2, drain_seed);
          if (!executed.report.fits()) continue;
          ++fitted;
          EXPECT_THAT(Check(*executed.trace, executed.report), IsEmpty()) << policy;
          EXPECT_EQ(executed.execution->loss, reference.execution->loss) << policy;
          EXPECT_EQ(executed.execution->weights_digest, reference.execution->weights_digest)
              << policy << " " << factor;
        }
      }
      EXPECT_GE(fitted, 2) << policy;
    }
  }
}

}  // namespace
}  // namespace spillway::testing
