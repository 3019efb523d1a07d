// Tests that any fault at any time ends the run with an error that names the fault, or leaves it
// with the right bits. Nothing stays allocated, and the next run on the same pools is as good as
// the first.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/alloc/best_fit.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "sim/runtime/runtime.h"
#include "tests/testing/faults.h"
#include "tests/testing/mixing.h"
#include "tests/testing/networks.h"
#include "tests/testing/random_policy.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Bytes kMemory = Bytes::MiB(8);

using NetworkMaker = Network (*)();

struct Result {
  std::optional<Report> report;  // unset if an exception was thrown
  std::string error;             // message of an `EnvironmentError`; other exceptions pass
  std::vector<std::vector<uint64_t>> read;
};

// Pools that serve one run after another, however the previous run ended.
class Rig {
 public:
  Rig(std::string policy, const Network& network, Bytes memory = kMemory)
      : policy_(std::move(policy)),
        trace_(LowerNetwork(network, {3, "vdnn", true})),
        device_(testing::NarrowDevice()),
        cost_(device_),
        arena_(memory, device_.alignment),
        host_pool_(kMemory, device_.alignment) {
    RegisterBuiltinPolicies(registry_);
    device_.memory = memory;
  }

  Result Execute(Fault& fault) {
    testing::MixingOps ops(trace_);
    CpuBackend cpu(
        trace_, {kMemory, {kMemory}, 7, 3},
        [&](const Op& op, const auto&, const auto& inputs, const auto& outputs, uint64_t seed) {
          testing::MaybeFail(op, fault);
          ops.Run(op, inputs, outputs, seed);
        });
    testing::FaultyBackend backend(cpu, fault);
    testing::FaultyAllocator arena(arena_, FaultKind::kAllocation, fault);
    testing::FaultyAllocator host_pool(host_pool_, FaultKind::kHostAllocation, fault);
    const auto policy = MakePolicy();
    RuntimeParts parts;
    parts.trace = &trace_;
    parts.device = &device_;
    parts.cost = &cost_;
    parts.arena = &arena;
    parts.pools[0] = &host_pool;
    parts.backend = &backend;
    parts.policy = policy.get();
    const TrialRun trial([&](Policy& other, Bytes memory, const TrialOptions&) {
      return testing::Simulate({Borrow(trace_), device_, Borrow(cost_), memory}, other).report;
    });
    EXPECT_EQ(policy->Prepare(trace_, device_, cost_, trial, {}).memory, device_.memory);
    RuntimeOptions options;
    options.iterations = 2;
    Result result;
    try {
      result.report = sim::Run(parts, options);
    } catch (const EnvironmentError& error) {
      result.error = error.what();
    }
    result.read = ops.read();
    return result;
  }

  Result ExecuteSound() {
    Fault none(FaultKind::kAllocation, int64_t{1} << 40);
    return Execute(none);
  }

  const Trace& trace() const { return trace_; }
  Allocator& arena() { return arena_; }
  Allocator& host_pool() { return host_pool_; }

 private:
  std::unique_ptr<Policy> MakePolicy() const {
    if (policy_ != "random") return registry_.Make(policy_);
    std::mt19937 random(4);
    testing::PolicySpec spec;
    spec.on_failure = 3;
    for (int i = 0; i < 150; ++i) {
      testing::Act act;
      for (uint8_t& number : act) number = static_cast<uint8_t>(random());
      spec.acts.push_back(act);
    }
    return std::make_unique<testing::RandomPolicy>(spec,
                                                   std::vector<const Allocator*>{&host_pool_});
  }

  const std::string policy_;
  const Trace trace_;
  Device device_;
  const RooflineCostModel cost_;
  BestFit arena_, host_pool_;
  PolicyRegistry registry_;
};

// Returns the least memory, in steps of 1/64 of the largest op's need, in which vdnn-dyn fits and
// moves something. Returns kMemory if there is none.
Bytes TightMemory(const Network& network) {
  const Trace trace = LowerNetwork(network, {3, "vdnn", true});
  const Device device = testing::NarrowDevice();
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const int64_t bound = LayerBound(trace, device.alignment).count();
  for (int64_t steps = 64; steps < 256; ++steps) {
    const Bytes memory(bound * steps / 64);
    const Report report =
        testing::Simulate({Borrow(trace), device, Borrow(cost), memory}, *registry.Make("vdnn-dyn"))
            .report;
    if (report.fits() && report.metrics.offloaded > Bytes(0)) return memory;
  }
  return kMemory;
}

class Faults : public ::testing::TestWithParam<std::tuple<std::string, NetworkMaker, FaultKind>> {};

TEST_P(Faults, EndInAClearErrorOrTheRightBits) {
  const auto& [policy, network, kind] = GetParam();
  const bool is_allocation = kind == FaultKind::kAllocation || kind == FaultKind::kHostAllocation;
  // vdnn-dyn moves nothing if memory is ample.
  const bool tight = policy == "vdnn-dyn";
  Rig rig(policy, network(), tight ? TightMemory(network()) : kMemory);
  const Result reference = rig.ExecuteSound();
  ASSERT_TRUE(reference.report && reference.report->fits());
  int struck = 0, survived = 0;
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    Fault fault(kind, at);
    const Result result = rig.Execute(fault);
    EXPECT_EQ(rig.arena().Stats().allocated, Bytes(0));
    EXPECT_EQ(rig.host_pool().Stats().allocated, Bytes(0));
    if (!fault.struck()) break;
    ++struck;
    if (!is_allocation) {
      EXPECT_THAT(result.error, AllOf(HasSubstr("injected"), HasSubstr("op '")));
      EXPECT_THAT(result.error, HasSubstr(kind == FaultKind::kCopy        ? "copy of '"
                                          : kind == FaultKind::kExecution ? "in iteration "
                                                                          : "op '"));
    } else {
      ASSERT_TRUE(result.report);
      if (result.report->fits()) {
        ++survived;
        EXPECT_EQ(result.read, reference.read);
        EXPECT_THAT(Check(rig.trace(), *result.report), IsEmpty());
      } else {
        EXPECT_THAT(result.report->out_of_memory->Message(), HasSubstr("out of device memory"));
        EXPECT_THAT(result.report->out_of_memory->op_name, Not(IsEmpty()));
        EXPECT_THAT(result.report->out_of_memory->what, Not(IsEmpty()));
      }
    }
    const Result next = rig.ExecuteSound();
    ASSERT_TRUE(next.report && next.report->fits());
    EXPECT_EQ(next.read, reference.read);
    EXPECT_EQ(next.report->decisions, reference.report->decisions);
    EXPECT_EQ(next.report->timeline, reference.report->timeline);
  }
  RecordProperty("faults", struck);
  RecordProperty("survived", survived);
  fmt::print("{} faults, {} survived\n", struck, survived);
  // Faults of every kind have occasions, except where a policy moves nothing.
  EXPECT_EQ(reference.report->metrics.offloaded > Bytes(0), policy != "liveness");
  if (reference.report->metrics.offloaded > Bytes(0) ||
      (kind != FaultKind::kCopy && kind != FaultKind::kHostAllocation)) {
    EXPECT_GE(struck, 5);
  }
  // A full host pool must not end the run if the device has room.
  if (kind == FaultKind::kHostAllocation && !tight) {
    EXPECT_EQ(survived, struck);
  }
}

std::string NameOf(const Faults::ParamType& param) {
  constexpr std::array kKinds{"Allocation", "HostAllocation", "Launch", "Copy", "Execution"};
  const auto& [policy, network, kind] = param;
  std::string name =
      fmt::format("{}_{}_{}", policy, network().name(), kKinds[static_cast<size_t>(kind)]);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, Faults,
    ::testing::Combine(::testing::Values("vdnn-all", "vdnn-dyn", "liveness", "random"),
                       ::testing::Values(testing::Chain, testing::ForkJoin),
                       ::testing::Values(FaultKind::kAllocation, FaultKind::kHostAllocation,
                                         FaultKind::kLaunch, FaultKind::kCopy,
                                         FaultKind::kExecution)),
    [](const auto& test) { return NameOf(test.param); });

// The host pool has no free byte, so nothing can be offloaded. Nothing else goes wrong.
TEST(FaultTest, AFullHostPoolIsSurvived) {
  for (const char* policy : {"vdnn-all", "random"}) {
    Rig rig(policy, testing::ForkJoin());
    const Result reference = rig.ExecuteSound();
    EXPECT_GT(reference.report->metrics.offloaded, Bytes(0));
    const auto all = rig.host_pool().Allocate(rig.host_pool().Stats().largest_free, Hint::kLow);
    const Result result = rig.ExecuteSound();
    ASSERT_TRUE(result.report && result.report->fits());
    EXPECT_EQ(result.read, reference.read);
    EXPECT_THAT(Check(rig.trace(), *result.report), IsEmpty());
    EXPECT_EQ(result.report->metrics.offloaded, Bytes(0));
    rig.host_pool().Free(*all);
  }
}

// If its allocation fails, Prefetch returns false. The run then differs, but it is not wrong.
TEST(FaultTest, APrefetchWithoutABlockSaysFalse) {
  Rig rig("vdnn-all", testing::Chain());
  int said_false = 0;
  for (int64_t at = 0;; ++at) {
    Fault fault(FaultKind::kAllocation, at);
    const Result result = rig.Execute(fault);
    if (!fault.struck()) break;
    if (!result.report->fits()) continue;
    said_false += static_cast<int>(
        std::count_if(result.report->decisions.begin(), result.report->decisions.end(),
                      [](const Decision& decision) {
                        return decision.verb == Verb::kPrefetch && !decision.done;
                      }));
  }
  EXPECT_GE(said_false, 1);
}

}  // namespace
}  // namespace spillway::testing
