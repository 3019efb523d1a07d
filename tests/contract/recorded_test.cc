// Recorded programs on real bytes. Under every policy, the CPU backend ends with the parameters and
// optimizer state of the plain order, both in the order of issue and in another legal order. Its
// stand-ins hash all bytes that they read. Decisions and placements are the simulator's.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/recorded.h"
#include "tests/testing/execute.h"
#include "tests/testing/files.h"
#include "tests/testing/lookup.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/text_stream.h"
#include "traces/import/execution_trace.h"
#include "traces/import/kineto.h"
#include "traces/import/pytorch_step.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

Trace Import(const std::string& name) {
  const auto file = [&](const char* kind) {
    return testing::InSource(
        fmt::format("tests/testing/recordings/pytorch/{}.{}.json.zst", name, kind));
  };
  TextStream kineto(file("kineto")), execution(file("et"));
  ImportOptions options;
  options.network = name;
  return ImportStep(ReadKineto(kineto), ReadExecutionTrace(execution), options).trace;
}

// Returns the same program on tensors of 1/4096 of their size.
Trace Shrunk(Trace trace) {
  constexpr int64_t kFactor = 4096;
  for (Tensor& tensor : trace.tensors) {
    tensor.size = Bytes(std::max<int64_t>(tensor.size.count() / kFactor, 1));
    tensor.shape = {tensor.size.count()};
  }
  for (Tensor& tensor : trace.tensors) {
    if (!tensor.alias_of) continue;
    const Bytes root = trace.tensor(*tensor.alias_of).size;
    tensor.offset = std::min(Bytes(tensor.offset.count() / kFactor), root - Bytes(1));
    tensor.size = std::min(tensor.size, root - tensor.offset);
    tensor.shape = {tensor.size.count()};
  }
  for (Op& op : trace.ops) op.recorded->workspace = Bytes(op.recorded->workspace.count() / kFactor);
  return trace;
}

// Returns the recorded programs, which are imported once.
const std::vector<Trace>& Programs() {
  static const std::vector<Trace> programs{Shrunk(Import("resnet50-b32")),
                                           Shrunk(Import("gpt2-b4s512"))};
  return programs;
}

class RecordedContract : public ::testing::TestWithParam<const char*> {
 protected:
  RecordedContract() { RegisterBuiltinPolicies(registry_); }

  // For policies that search or that examine everything repeatedly, one program is enough.
  std::span<const Trace> programs() const {
    const std::string_view policy = GetParam();
    const bool slow = policy == "dtr" || policy.starts_with("joint");
    return std::span(Programs()).first(slow ? 1 : 2);
  }

  PolicyRegistry registry_;
  const Device device_ = testing::NarrowDevice();
};

INSTANTIATE_TEST_SUITE_P(All, RecordedContract,
                         ::testing::Values("liveness", "vdnn-all", "vdnn-conv", "vdnn-dyn",
                                           "vdnnpp", "superneurons", "mxnet", "tensorflow", "dtr",
                                           "capuchin", "joint:effort=10"),
                         [](const auto& test) { return testing::CaseName(test.param); });

TEST_P(RecordedContract, SameBitsDecisionsAndPlacements) {
  int fitted = 0;
  for (const Trace& trace : programs()) {
    const RecordedCostModel cost(*trace.recording, device_, std::nullopt);
    const Outcome reference = testing::RunOnCpu(
        {Borrow(trace), device_, Borrow(cost), Bytes::GiB(1)}, *registry_.Make("liveness"), 2);
    const Bytes peak = reference.report.metrics.peak_reserved;
    for (const int percent : {110, 60}) {
      Draft setup{Borrow(trace), device_, Borrow(cost), Bytes(peak.count() * percent / 100)};
      setup.options.iterations = 2;
      const Report predicted = testing::RunPolicy(setup, *registry_.Make(GetParam())).report;
      for (const std::optional<uint64_t> drain_seed :
           {std::optional<uint64_t>(), std::optional<uint64_t>(1)}) {
        const Outcome executed =
            testing::RunOnCpu(setup, *registry_.Make(GetParam()), 2, drain_seed);
        ASSERT_EQ(executed.report.fits(), predicted.fits());
        EXPECT_EQ(executed.report.decisions, predicted.decisions);
        EXPECT_EQ(executed.report.placements, predicted.placements);
        if (!predicted.fits()) continue;
        ++fitted;
        EXPECT_THAT(Check(*executed.trace, executed.report), IsEmpty());
        EXPECT_EQ(executed.execution->weights_digest, reference.execution->weights_digest);
      }
    }
  }
  EXPECT_GE(fitted, 2 * std::ssize(programs()));  // all runs in ample memory fit
}

// Every second storage is one without which the program cannot do.
TEST_P(RecordedContract, MovesOnlyWhatMayMove) {
  Trace trace = programs()[0];
  for (size_t i = 0; i < trace.tensors.size(); i += 2) trace.tensors[i].movable = false;
  const RecordedCostModel cost(*trace.recording, device_, std::nullopt);
  const auto run = [&](Bytes memory) {
    const Draft setup{Borrow(trace), device_, Borrow(cost), memory};
    return testing::RunPolicy(setup, *registry_.Make(GetParam()));
  };
  const Bytes peak = run(Bytes::GiB(1)).report.metrics.peak_reserved;
  const Outcome outcome = run(Bytes(peak.count() * 8 / 10));
  for (const Decision& decision : outcome.report.decisions) {
    const bool moves = decision.verb == Verb::kOffload || decision.verb == Verb::kEvict;
    if (!decision.done || !moves) continue;
    EXPECT_TRUE(outcome.trace->tensor(decision.tensor).movable);
  }
}

}  // namespace
}  // namespace spillway::testing
