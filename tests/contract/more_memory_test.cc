// Tests that more memory slows down no policy that claims to choose the fastest of its ways. The
// grid has steps of 10 % from the floor of layer-wise policies to the in-core peak. By default some
// workloads run; with SPILLWAY_WHOLE_ZOO set, the whole zoo runs too. The papers' own rules make no
// such claim.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "experiments/run/inputs.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/prepare.h"
#include "experiments/run/run.h"
#include "tests/testing/lookup.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

struct Case {
  std::string workload;
  std::string device;
};

std::vector<Case> Cases() {
  // Each of these cases was up to 5.7 % slower with more memory when only the given memory was
  // tried.
  std::vector<Case> cases{{"resnet50:64", "a100"},
                          {"vgg16:256", "h200"},
                          {"googlenet:128", "k40c"},
                          {"densenet169:32", "h200"}};
  if (std::getenv("SPILLWAY_WHOLE_ZOO") == nullptr) return cases;
  for (const ZooEntry& entry : Zoo()) {
    for (const char* device : {"a100", "gtx_1080ti", "k40c", "h200"}) {
      cases.push_back({entry.name + ":32", device});
    }
  }
  return cases;
}

class MoreMemoryTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, MoreMemoryTest, ::testing::ValuesIn(Cases()), [](const auto& test) {
  return testing::CaseName(
      fmt::format("{}_{}_{}", test.index, test.param.workload, test.param.device));
});

TEST_P(MoreMemoryTest, IsNoSlower) {
  lab::Case asked{GetParam().workload};
  asked.device = GetParam().device;
  const Inputs inputs(asked);
  for (const char* policy : {"vdnnpp", "vdnn-dyn:adopt=fastest"}) {
    std::optional<Duration> fastest;
    for (int percent = 0; percent <= 110; percent += 10) {
      asked.memory = fmt::format("{}%", percent);
      asked.policy = policy;
      const Report report = RunCase(asked, inputs).report;
      EXPECT_TRUE(report.fits() || !fastest) << policy << " at " << percent << " %";
      if (!report.fits()) continue;
      const Duration iteration = report.metrics.iteration;
      EXPECT_LE(iteration * 1000, fastest.value_or(iteration) * 1005)
          << policy << " at " << percent << " %";
      fastest = std::min(iteration, fastest.value_or(iteration));
      EXPECT_LE(report.metrics.peak_reserved, inputs.MemoryOf(asked));
    }
    EXPECT_TRUE(fastest) << policy;
  }
}

}  // namespace
}  // namespace spillway::testing
