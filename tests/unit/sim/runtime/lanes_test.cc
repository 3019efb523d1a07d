// Tests of steps whose ops run on several streams of the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "sim/alloc/best_fit.h"
#include "sim/core/forwarding_allocator.h"
#include "sim/engine/sim_backend.h"
#include "sim/runtime/runtime.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A step that gathers g on lane 1 while f2 runs. f3 needs both.
Trace GatheringTrace() {
  Trace trace = TraceBuilder()
                    .Tensor("x", TensorKind::kInput, 10)
                    .Tensor("y", TensorKind::kActivation, 10)
                    .Tensor("g", TensorKind::kActivation, 10)
                    .Tensor("z", TensorKind::kActivation, 10)
                    .Op("f1", Phase::kForward, {"x"}, {"y"})
                    .Op("gather", Phase::kForward, {"y"}, {"g"})
                    .Op("f2", Phase::kForward, {"y"}, {"z"})
                    .Op("f3", Phase::kForward, {"g", "z"}, {"z"})
                    .Build();
  trace.ops[1].lane = 1;
  trace.ops[1].attributes = {{"ranks", 2}};
  trace.tensors[2].lane = 1;
  trace.Validate();
  return trace;
}

FixedCost SlowGather(const Trace& trace) {
  FixedCost cost;
  cost.Set(trace.ops[1].slots[0].signature,
           {{"default", Duration::Nanoseconds(25), Bytes(0), true}});
  return cost;
}

TEST(LanesTest, LanesRunAtOnceAndWaitForEachOther) {
  const Trace trace = GatheringTrace();
  ScriptedPolicy policy;
  const RunResult result = RunSim(trace, SlowGather(trace), policy);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(testing::TimelineText(trace, result.report),
            "    0    10 compute f1\n"
            "   10    35 lane1 gather\n"
            "   10    20 compute f2\n"
            "   35    45 compute f3\n");
  const Metrics& metrics = result.report.metrics;
  EXPECT_EQ(metrics.compute, Duration::Nanoseconds(30));
  EXPECT_EQ(metrics.communication, Duration::Nanoseconds(25));
  EXPECT_EQ(metrics.exposed, Duration::Nanoseconds(15));
  EXPECT_EQ(metrics.stalls.lane, Duration::Nanoseconds(15));
  EXPECT_EQ(metrics.iteration, metrics.compute + metrics.stalls.total());
  EXPECT_EQ(result.report.bounds.compute, Duration::Nanoseconds(30));
}

// On lane 0, the collective is exposed as a whole.
TEST(LanesTest, ACollectiveOnTheComputeStreamIsExposed) {
  Trace trace = GatheringTrace();
  trace.ops[1].lane = 0;
  ScriptedPolicy policy;
  const Metrics metrics = RunSim(trace, SlowGather(trace), policy).report.metrics;
  EXPECT_EQ(metrics.iteration, Duration::Nanoseconds(55));
  EXPECT_EQ(metrics.exposed, Duration::Nanoseconds(25));
}

TEST(LanesTest, TheProgramMayMakeItsStreamsWait) {
  Trace trace = GatheringTrace();
  trace.ops[2].after = {OpId{1}};
  ScriptedPolicy policy;
  const RunResult result = RunSim(trace, SlowGather(trace), policy);
  EXPECT_EQ(result.report.metrics.iteration, Duration::Nanoseconds(55));
  EXPECT_EQ(result.report.waits.at(1).cause, WaitCause::kLane);
}

// An arena that notes which streams its requests are of.
class NotesStreams final : public ForwardingAllocator {
 public:
  using ForwardingAllocator::ForwardingAllocator;
  void UseStream(uint64_t stream) override { stream_ = stream; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    streams.push_back(stream_);
    return ForwardingAllocator::Allocate(size, hint);
  }

  std::vector<uint64_t> streams;

 private:
  uint64_t stream_ = 0;
};

TEST(LanesTest, MemoryComesFromTheLaneOfTheTensor) {
  const Trace trace = GatheringTrace();
  const FixedCost cost;
  const Device device = testing::RoundDevice();
  BestFit arena(Bytes(1000), Bytes(1)), host(Bytes(1000), Bytes(1));
  NotesStreams noting(arena);
  SimBackend backend(device, cost);
  ScriptedPolicy policy;
  RuntimeParts parts;
  parts.trace = &trace;
  parts.device = &device;
  parts.cost = &cost;
  parts.arena = &noting;
  parts.pools[0] = &host;
  parts.backend = &backend;
  parts.policy = &policy;
  RuntimeOptions options;
  options.iterations = 1;
  sim::Run(parts, options);
  EXPECT_THAT(noting.streams, ElementsAre(0, 0, 1, 0));  // x y g z
}

}  // namespace
}  // namespace spillway::testing
