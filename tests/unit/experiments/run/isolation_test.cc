// Outcomes as bytes for another process. tests/out_of_tree runs plugins in processes of their own.

#include "experiments/run/isolation.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/output/decisions.h"
#include "experiments/output/run_result.h"
#include "experiments/run/archive.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/prepare.h"
#include "traces/base/error.h"
#include "traces/format.h"

namespace spillway::testing {
namespace {

TEST(ArchiveTest, ValuesComeBackAndDamageIsAnError) {
  const std::string bytes =
      Archive::Save(std::vector<std::string>{"", "text"}, std::optional<std::string>("x"),
                    std::optional<std::string>(), std::vector<int64_t>{1, 2, 3}, true);
  std::vector<std::string> texts;
  std::optional<std::string> some, none = "set";
  std::vector<int64_t> numbers;
  bool truth = false;
  Archive::Load(bytes, texts, some, none, numbers, truth);
  EXPECT_EQ(texts, (std::vector<std::string>{"", "text"}));
  EXPECT_EQ(some, "x");
  EXPECT_EQ(none, std::nullopt);
  EXPECT_EQ(numbers, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(truth);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(Archive::Load(bytes.substr(0, size), texts, some, none, numbers, truth),
                 PolicyError)
        << size;
  }
}

// Each case has a part of an outcome that the others lack.
TEST(IsolationTest, OutcomesPassToAnotherProcess) {
  Case plain{"alexnet:4"};
  plain.policy = "vdnn-all";
  Case misfit = plain;
  misfit.memory = "1MiB";
  Case compressing = plain;
  compressing.compress = ParseCompression("all:density=0.3");
  compressing.pools = {"peer:size=1GiB"};
  Case rewritten{"alexnet:4"};
  rewritten.training = false;
  rewritten.policy = "mmcnn";
  Case mapped = plain;
  mapped.allocator = "pytorch:expandable_segments=true";
  Case executed = plain;
  executed.backend = "cpu";
  for (const Case& asked : {plain, misfit, compressing, rewritten, mapped, executed}) {
    SCOPED_TRACE(CommandOf(asked));
    const Inputs inputs(asked);
    Case predicted = asked;
    predicted.backend = kSimulator;
    Outcome outcome = RunCase(predicted, inputs);
    if (asked.backend != kSimulator) {
      outcome.execution = Execution{1.5F, {2, 3}, "digest", {Duration::Milliseconds(4)}, "weights"};
    }
    const std::string bytes = SaveOutcome(outcome, inputs.trace());
    const Outcome loaded = LoadOutcome(bytes, inputs.trace());
    EXPECT_EQ(SaveOutcome(loaded, inputs.trace()).size(), bytes.size());
    EXPECT_EQ(loaded.trace == inputs.trace(), outcome.trace == inputs.trace());
    EXPECT_EQ(FormatTrace(*loaded.trace), FormatTrace(*outcome.trace));
    EXPECT_EQ(loaded.report.timeline, outcome.report.timeline);
    EXPECT_EQ(FormatDecisions(*loaded.trace, loaded.report, *inputs.cost()),
              FormatDecisions(*outcome.trace, outcome.report, *inputs.cost()));
    if (outcome.execution) {
      EXPECT_EQ(loaded.execution->weights, outcome.execution->weights);
    }
    const auto row = [&](const Outcome& from) {
      const RunResult result = ResultOf(asked, inputs, from);
      return FormatJson(ResultColumns(), std::span(&result, 1), "");
    };
    EXPECT_EQ(row(loaded), row(outcome));
  }
}

TEST(IsolationTest, ProgramsThatUseTheLibraryRunPluginsThemselves) {
  Case asked{"alexnet:4"};
  asked.policy = "./nowhere.so:p";
  EXPECT_FALSE(IsIsolated(asked));
  EXPECT_THROW(CheckPolicy(asked), InputError);
}

}  // namespace
}  // namespace spillway::testing
