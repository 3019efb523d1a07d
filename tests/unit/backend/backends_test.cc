// Tests of the hardware backends that need no hardware.

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "backend/cuda/conv_algorithm.h"
#include "backend/cuda/module.h"
#include "traces/base/counter_random.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

constexpr std::array kSteps{ConvStep::kForward, ConvStep::kBackwardData, ConvStep::kBackwardFilter};

TEST(ConvAlgorithmTest, NamesRoundTrip) {
  for (const ConvStep step : kSteps) {
    EXPECT_EQ(ParseConvStep(Name(step)), step);
    std::set<std::string_view> names;
    int value = 0;
    for (const ConvAlgorithm& algorithm : ConvAlgorithms(step)) {
      EXPECT_TRUE(names.insert(algorithm.name).second) << algorithm.name;
      EXPECT_EQ(algorithm.value, value++) << algorithm.name;
      EXPECT_EQ(&FindConvAlgorithm(step, algorithm.name), &algorithm);
    }
  }
}

TEST(ConvAlgorithmTest, OnlyTheAtomicOnesAreNotDeterministic) {
  std::set<std::string> found;
  for (const ConvStep step : kSteps) {
    for (const ConvAlgorithm& algorithm : ConvAlgorithms(step)) {
      if (algorithm.deterministic) continue;
      found.insert(std::string(Name(step)) + " " + std::string(algorithm.name));
    }
  }
  EXPECT_EQ(found,
            (std::set<std::string>{"bwd_data algo_0", "bwd_filter algo_0", "bwd_filter algo_3"}));
}

TEST(ConvAlgorithmTest, UnknownNamesListTheValidOnes) {
  try {
    FindConvAlgorithm(ConvStep::kBackwardData, "winogradd");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("winograd_nonfused"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(FindConvAlgorithm(ConvStep::kForward, "algo_0"), InputError);
  EXPECT_THROW(ParseConvStep("update"), InputError);
}

// The known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  const Philox4 zeros = Philox(0, 0, 0, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_EQ(zeros.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.word[3], 0x9b00dbd8u);
  const Philox4 ones = Philox(~uint64_t{0}, ~0u, ~0u, ~0u, ~0u);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(PhiloxTest, DropoutKeepsTheRightFraction) {
  int kept = 0;
  for (int64_t element = 0; element < 100'000; ++element) {
    if (DropoutKeeps(7, 3, element, 0.4f)) ++kept;
  }
  EXPECT_NEAR(kept, 60'000, 800);  // five standard deviations
}

// On a machine with a usable GPU no error occurs, and the test is skipped.
TEST(BackendsTest, MeasuringSaysWhatIsMissing) {
  std::string missing;
  try {
    EXPECT_FALSE(Cuda().describe(0).empty());
  } catch (const EnvironmentError& error) {
    missing = error.what();
  }
  if (missing.empty()) GTEST_SKIP() << "this machine has a GPU: " << Cuda().describe(0);
  EXPECT_NE(missing.find("GPU"), std::string::npos) << missing;
  const auto expect_missing = [&](const auto& run) {
    try {
      run();
      FAIL() << "ran without a GPU";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.what(), missing);
    }
  };
  expect_missing([] { Cuda().record(Trace{}, RecordOptions{}); });
  expect_missing([] { Cuda().calibrate(CalibrateOptions{}); });
}

}  // namespace
}  // namespace spillway::testing
