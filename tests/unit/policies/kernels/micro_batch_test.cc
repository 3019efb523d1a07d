// Tests of the division of mini-batches against brute force, and of workspace segments by two
// programs.

#include "policies/kernels/micro_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/run.h"
#include "policies/kernels/workspace_division.h"
#include "policies/registry.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;

Duration Ns(int64_t n) { return Duration::Nanoseconds(n); }

// A cost model whose kernels depend only on the batch, the same for every slot of a convolution.
class BatchCost final : public CostModel {
 public:
  static constexpr int64_t kOther = 0;  // the batch that stands for ops other than convolutions

  void Set(int64_t batch, std::vector<Kernel> kernels) {
    std::ranges::sort(kernels, [](const Kernel& a, const Kernel& b) {
      return std::tie(a.time, a.workspace) < std::tie(b.time, b.workspace);
    });
    kernels_[batch] = std::move(kernels);
  }

  std::vector<int64_t> Batches(const Op&, size_t) const override {
    std::vector<int64_t> batches;
    for (const auto& [batch, kernels] : kernels_) batches.push_back(batch);
    return batches;
  }
  std::span<const Kernel> Kernels(const Op& op, size_t, int64_t batch) const override {
    return kernels_.at(op.type == OpType::kConv2d ? batch : kOther);
  }
  Duration CopyTime(Direction, Bytes) const override { return Duration(); }
  std::string Provenance() const override { return "test"; }

 private:
  std::map<int64_t, std::vector<Kernel>> kernels_;
};

Op Convolution(int64_t batch) {
  Op op;
  op.type = OpType::kConv2d;
  op.phase = Phase::kForward;
  op.batch = batch;
  op.slots.push_back({"fwd", "shape", 1, Bytes(1)});
  return op;
}

// Tries every way to add up to `left` samples with parts of at most `most` samples. Stores in
// `least` the least time for each workspace.
void TryAll(const BatchCost& cost, const Op& op, int64_t left, int64_t most, Bytes workspace,
            Duration time, std::map<Bytes, Duration>& least) {
  if (left == 0) {
    const auto [entry, added] = least.try_emplace(workspace, time);
    entry->second = std::min(entry->second, time);
    return;
  }
  for (const int64_t batch : cost.Batches(op, 0)) {
    if (batch > std::min(left, most)) break;
    for (const Kernel& kernel : cost.Kernels(op, 0, batch)) {
      TryAll(cost, op, left - batch, batch, std::max(workspace, kernel.workspace),
             time + kernel.time, least);
    }
  }
}

TEST(DivisionFrontsTest, EqualBruteForce) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };
  size_t divided = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t batch = draw(12);
    BatchCost cost;
    for (int64_t b = 1; b <= batch; ++b) {
      if (b != batch && draw(4) == 1) continue;
      std::vector<Kernel> kernels{{"slow", Ns(2 * b + draw(12)), Bytes(draw(20)), true}};
      if (draw(2) == 1) kernels.push_back({"fast", Ns(b + draw(12)), Bytes(10 * draw(20)), true});
      cost.Set(b, kernels);
    }
    const Op op = Convolution(batch);
    std::map<Bytes, Duration> least;
    TryAll(cost, op, batch, batch, Bytes(0), Duration(), least);
    std::vector<std::pair<Bytes, Duration>> expected;
    for (const auto& [workspace, time] : least) {
      if (expected.empty() || time < expected.back().second) expected.emplace_back(workspace, time);
    }

    DivisionFronts fronts(MicroBatches::kAll);
    std::vector<std::pair<Bytes, Duration>> found;
    for (const Division& division : fronts.Of(cost, op, 0)) {
      found.emplace_back(division.workspace, division.time);
      int64_t samples = 0;
      Duration time;
      Bytes workspace;
      for (const KernelRun& part : division.parts) {
        const Kernel& kernel = cost.Kernels(op, 0, part.batch)[part.kernel];
        samples += part.batch;
        time += kernel.time;
        workspace = std::max(workspace, kernel.workspace);
      }
      EXPECT_EQ(samples, batch);
      EXPECT_EQ(time, division.time);
      EXPECT_EQ(workspace, division.workspace);
      divided += division.parts.size() > 1 ? 1 : 0;
    }
    ASSERT_EQ(found, expected) << "round " << round;
  }
  EXPECT_GT(divided, 100u);
}

// conv1 in Fig. 5 of the paper: 256 samples are divided into four times 60 and 16.
TEST(DivisionFrontsTest, DividesAsTheDrawingDoes) {
  BatchCost cost;
  for (int64_t b = 1; b <= 256; ++b) {
    std::vector<Kernel> kernels{{"gemm", Ns(1000 + 100 * b), Bytes(0), true}};
    if (b == 60) kernels.push_back({"fft", Ns(3000), Bytes(64), true});
    cost.Set(b, kernels);
  }
  DivisionFronts fronts(MicroBatches::kAll);
  const auto front = fronts.Of(cost, Convolution(256), 0);
  ASSERT_EQ(front.size(), 2u);
  std::vector<int64_t> batches;
  for (const KernelRun& part : front[1].parts) batches.push_back(part.batch);
  EXPECT_THAT(batches, ::testing::ElementsAre(60, 60, 60, 60, 16));
  EXPECT_EQ(FastestWithin(front, Bytes(63)), &front[0]);
  EXPECT_EQ(FastestWithin(front, Bytes(64)), &front[1]);
}

TEST(DivisionFrontsTest, OptionsLimitTheBatches) {
  BatchCost cost;
  for (int64_t b = 1; b <= 6; ++b)
    cost.Set(b, {{"k", Ns(b == 3 ? 1 : b == 2 ? 5 : 100), Bytes(b)}});
  const auto fastest = [&](MicroBatches batches) {
    DivisionFronts fronts(batches);
    return fronts.Of(cost, Convolution(6), 0).back().time;
  };
  EXPECT_EQ(fastest(MicroBatches::kUndivided), Ns(100));
  EXPECT_EQ(fastest(MicroBatches::kPowerOfTwo), Ns(15));
  EXPECT_EQ(fastest(MicroBatches::kAll), Ns(2));
}

// --- Workspace division
// ---------------------------------------------------------------------------

std::vector<std::vector<Division>> RandomFronts(std::mt19937& random) {
  std::vector<std::vector<Division>> fronts(1 + random() % 12);
  for (auto& front : fronts) {
    Division next{Bytes(static_cast<int64_t>(random() % 100)),
                  Duration::Picoseconds(1'000'000'000 + static_cast<int64_t>(random())),
                  {}};
    for (size_t i = 0; i <= random() % 8; ++i) {
      front.push_back(next);
      next.workspace += Bytes(1 + static_cast<int64_t>(random() % 100'000'000));
      next.time -= Duration::Picoseconds(1 + static_cast<int64_t>(random() % 100'000'000));
    }
  }
  return fronts;
}

Bytes WorkspaceOf(std::span<const Front> fronts, const std::vector<size_t>& choice) {
  Bytes sum;
  for (size_t k = 0; k < fronts.size(); ++k) sum += fronts[k][choice[k]].workspace;
  return sum;
}

Duration TimeOf(std::span<const Front> fronts, const std::vector<size_t>& choice) {
  Duration sum;
  for (size_t k = 0; k < fronts.size(); ++k) sum += fronts[k][choice[k]].time;
  return sum;
}

void ExpectBothProgramsAgree(std::span<const Front> fronts, Bytes total) {
  const SegmentChoice exact = DivideExactly(fronts, total), ilp = DivideByIlp(fronts, total);
  ASSERT_EQ(exact.has_value(), ilp.has_value());
  if (!exact) return;
  EXPECT_LE(WorkspaceOf(fronts, *exact), total);
  EXPECT_LE(WorkspaceOf(fronts, *ilp), total);
  const Duration least = TimeOf(fronts, *exact), found = TimeOf(fronts, *ilp);
  EXPECT_GE(found, least);
  EXPECT_LE(found - least, Duration::Picoseconds(least.picoseconds() / 1'000'000)) << total.count();
}

TEST(WorkspaceDivisionTest, ExactlyIsBruteForce) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    auto fronts = RandomFronts(random);
    fronts.resize(std::min<size_t>(fronts.size(), 4));
    const std::vector<Front> spans(fronts.begin(), fronts.end());
    const Bytes total(static_cast<int64_t>(random() % 600'000'000));
    std::optional<Duration> least;
    std::vector<size_t> choice(spans.size(), 0);
    const std::function<void(size_t)> choose = [&](size_t k) {
      if (k == spans.size()) {
        if (WorkspaceOf(spans, choice) > total) return;
        least = std::min(least.value_or(Duration::Max()), TimeOf(spans, choice));
        return;
      }
      for (choice[k] = 0; choice[k] < spans[k].size(); ++choice[k]) choose(k + 1);
    };
    choose(0);
    const SegmentChoice found = DivideExactly(spans, total);
    ASSERT_EQ(found.has_value(), least.has_value());
    if (!found) continue;
    EXPECT_EQ(TimeOf(spans, *found), *least);
    EXPECT_LE(WorkspaceOf(spans, *found), total);
  }
}

TEST(WorkspaceDivisionTest, BothProgramsAgreeOnRandomFronts) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    const auto fronts = RandomFronts(random);
    const std::vector<Front> spans(fronts.begin(), fronts.end());
    ExpectBothProgramsAgree(spans, Bytes(static_cast<int64_t>(random() % 2'000'000'000)));
  }
}

// The fronts of all convolutions of a workload on the analytic P100.
class RealFronts {
 public:
  RealFronts(const std::string& workload, MicroBatches batches)
      : trace_(LoadTrace({workload, "superneurons", true})),
        cost_(LoadDevice("p100")),
        divisions_(batches) {
    fronts = FrontsOf(trace_, cost_, divisions_).fronts;
  }

  std::vector<Front> fronts;

 private:
  const Trace trace_;
  const RooflineCostModel cost_;
  DivisionFronts divisions_;
};

TEST(WorkspaceDivisionTest, BothProgramsAgreeOnRealFronts) {
  for (const char* workload : {"alexnet:256", "resnet18:128", "resnet50:32", "googlenet:128"}) {
    const RealFronts real(workload, MicroBatches::kPowerOfTwo);
    for (const int64_t mebibytes : {8, 64, 120, 512, 960, 1272, 2544, 7680}) {
      SCOPED_TRACE(workload + std::to_string(mebibytes));
      ExpectBothProgramsAgree(real.fronts, Bytes::MiB(mebibytes));
    }
  }
}

// --- Properties
// -----------------------------------------------------------------------------------

// Tests the fastest time within a limit. It never increases with a larger limit, by dividing
// batches, or by allowing all batches instead of powers of two. Segments of a total are never
// faster than giving each kernel the whole total, and never slower than equal shares without
// division.
TEST(UcudnnTest, TimesAreMonotone) {
  for (const char* workload : {"alexnet:64", "resnet50:32", "densenet40:64"}) {
    const RealFronts undivided(workload, MicroBatches::kUndivided);
    const RealFronts powers(workload, MicroBatches::kPowerOfTwo);
    const RealFronts all(workload, MicroBatches::kAll);
    const auto kernels = static_cast<int64_t>(all.fronts.size());
    const auto time = [](const RealFronts& real, Bytes limit) {
      Duration sum;
      for (const Front front : real.fronts) sum += FastestWithin(front, limit)->time;
      return sum;
    };
    std::optional<Duration> before;
    for (int64_t mebibytes = 0; mebibytes <= 512; mebibytes += mebibytes < 16 ? 1 : 31) {
      SCOPED_TRACE(workload + std::to_string(mebibytes));
      const Bytes limit = Bytes::MiB(mebibytes);
      EXPECT_LE(time(powers, limit), time(undivided, limit));
      EXPECT_LE(time(all, limit), time(powers, limit));
      EXPECT_LE(time(powers, limit), before.value_or(Duration::Max()));
      before = time(powers, limit);
      if (mebibytes % 2 != 0) continue;
      const Bytes total = limit * kernels;
      const SegmentChoice segments = DivideByIlp(powers.fronts, total);
      ASSERT_TRUE(segments);
      EXPECT_GE(TimeOf(powers.fronts, *segments), time(powers, total));
      EXPECT_LE(TimeOf(powers.fronts, *segments), time(undivided, limit));
    }
  }
}

// Workspaces are segments that persist, and each op runs in its own segment.
TEST(UcudnnTest, DivisionReservesASegmentForEachOp) {
  const Trace trace = LoadTrace({"alexnet:64", "torch", true});
  const Device device = LoadDevice("p100");
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::GiB(4)};
  const Report reuse = testing::Simulate(setup, *registry.Make("ucudnn:workspace=64MiB")).report;
  const Report division =
      testing::Simulate(setup, *registry.Make("ucudnn:mode=wd,workspace=64MiB")).report;
  ASSERT_TRUE(reuse.fits() && division.fits());
  EXPECT_LE(reuse.metrics.compute, division.metrics.compute);
  Bytes reserved;
  for (const Placement& placement : division.placements) {
    if (placement.tensor == kNoTensor && placement.kind == PlacementKind::kAllocate) {
      EXPECT_EQ(placement.commands, 0u);
      reserved += placement.requested;
    }
  }
  EXPECT_GT(reserved, Bytes::MiB(16));
  EXPECT_LE(reserved, Bytes::MiB(64));
}

// Policies pass their choice of kernels through the division into micro-batches.
TEST(UcudnnTest, PoliciesDivideWhereTheirWorkspaceIsShort) {
  const Trace trace = LoadTrace({"alexnet:256", "torch", true});
  const Device device = LoadDevice("p100");
  const RooflineCostModel cost(device);
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Bytes ample = Bytes::GiB(8), scarce = Bytes::MiB(1700);
  for (const auto& [policy, memory] :
       {std::pair<std::string, Bytes>{"liveness:algo=greedy,micro=powerOfTwo", scarce},
        {"vdnn-conv:algo=greedy,micro=powerOfTwo", scarce},
        {"vdnn-dyn:micro=powerOfTwo", Bytes::MiB(1400)},
        {"vdnnpp:micro=powerOfTwo", scarce},
        {"superneurons:micro=powerOfTwo", scarce},
        {"caffe:workspace=64MiB,micro=powerOfTwo", ample},
        {"torch:workspace=64MiB,micro=powerOfTwo", ample},
        {"mxnet:workspace=64MiB,micro=powerOfTwo", ample},
        {"tensorflow:workspace=64MiB,micro=powerOfTwo", ample}}) {
    const Draft setup{Borrow(trace), device, Borrow(cost), memory};
    const Report report = testing::Simulate(setup, *registry.Make(policy)).report;
    ASSERT_TRUE(report.fits()) << policy;
    const bool divided = std::ranges::any_of(report.decisions, [&](const Decision& decision) {
      return decision.verb == Verb::kRun && decision.run.batch < trace.op(decision.op).batch;
    });
    EXPECT_TRUE(divided) << policy;
    EXPECT_THAT(Check(trace, report), ::testing::IsEmpty()) << policy;
  }
}

TEST(UcudnnTest, ALimitBelowTheLeastIsAUsageError) {
  const Trace trace = LoadTrace({"alexnet:64", "torch", true});
  const Device device = LoadDevice("p100");
  BatchCost cost;
  cost.Set(64, {{"k", Ns(10), Bytes::MiB(3), true}});
  cost.Set(BatchCost::kOther, {{"default", Ns(10), Bytes(0), true}});
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  const Draft setup{Borrow(trace), device, Borrow(cost), Bytes::GiB(4)};
  for (const char* policy : {"ucudnn:workspace=1MiB", "ucudnn:mode=wd,workspace=40MiB"}) {
    try {
      testing::Simulate(setup, *registry.Make(policy));
      ADD_FAILURE() << policy;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("MiB"));
      EXPECT_THAT(error.what(), HasSubstr("or more"));
    }
  }
  EXPECT_THROW(registry.Make("ucudnn:workspace=0B"), UsageError);
}

}  // namespace
}  // namespace spillway::testing
