// Tests of predictions of compressed offload: pieces through staging buffers, the choice of
// storages, and the user's settings.

#include "experiments/run/compression_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "experiments/run/prepare.h"
#include "experiments/run/run.h"
#include "policies/registry.h"
#include "sim/compression/zero_value.h"
#include "sim/core/check.h"
#include "sim/cost/roofline.h"
#include "sim/engine/sim_backend.h"
#include "tests/testing/fixtures.h"
#include "tests/testing/networks.h"
#include "tests/testing/runs.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TensorId kX{0};

Duration Ns(int64_t n) { return Duration::Nanoseconds(n); }

// --- Pieces, drawn ------------------------------------------------------------------------------

// A fixture whose link copies 1 byte per nanosecond, without latency or launch overhead.
class CompressedCopies : public ::testing::Test {
 protected:
  CompressedCopies() : device_(testing::RoundDevice()), cost_(device_) {
    device_.launch_overhead = Duration();
    compression_.kept = {true, false};
    compression_.piece = Bytes(10);
    compression_.buffers = 2;
  }

  // Offloads and fetches `size` bytes. `compress` and `decompress` are the rates in bytes per
  // nanosecond.
  StreamTimes OutAndBack(Bytes size, int64_t compress, int64_t decompress, TensorId tensor = kX) {
    compression_.compress = {compress * 1'000'000'000};
    compression_.decompress = {decompress * 1'000'000'000};
    SimBackend backend(device_, cost_, {}, &compression_);
    const Block block{Bytes(0), size};
    backend.OnOutsideBlock(tensor, block, PoolId::kHost);
    const Wait out{backend.Copy(PoolId::kHost, Direction::kToHost, block, block, size, {}),
                   WaitCause::kSource};
    backend.Copy(PoolId::kHost, Direction::kToDevice, block, block, size, std::span(&out, 1));
    backend.Synchronize();
    StreamTimes times = backend.TakeTimeline();
    measured_ = backend.compression_times();
    return times;
  }

  Device device_;
  RooflineCostModel cost_;
  HostCompression compression_;
  CompressionTimes measured_;
};

//   out        |0|1|2|        back       |0|1|2|
//   compress     |0|1|2|      decompress |0|1|2|   five times as fast as the link
TEST_F(CompressedCopies, ThreadsFasterThanTheLinkCostOnePiece) {
  const Duration link = cost_.CopyTime(Direction::kToHost, Bytes(10));
  const StreamTimes times = OutAndBack(Bytes(30), 5, 5);
  const Interval& out = times[Index(Stream::kToHost)].at(0);
  const Interval& back = times[Index(Stream::kToDevice)].at(0);
  EXPECT_EQ(out.end - out.start, link * 3);
  EXPECT_EQ(back.start, out.end);  // the first pieces were decompressed long before
  EXPECT_EQ(back.end - back.start, link * 3 + Ns(0));
  EXPECT_EQ(measured_.compress, Ns(6));
  EXPECT_EQ(measured_.decompress, Ns(6));
  EXPECT_EQ(measured_.staging, Duration());
}

// With two buffers, the third piece waits until the first has been compressed.
TEST_F(CompressedCopies, CopiesWaitForBuffersThatSlowThreadsHold) {
  device_.d2h = device_.h2d = {{1'000'000'000}, Duration()};  // a byte per nanosecond
  const RooflineCostModel cost(device_);
  compression_.compress = {250'000'000};  // 40 ns for a piece
  compression_.decompress = {1'000'000'000};
  SimBackend backend(device_, cost, {}, &compression_);
  const Block block{Bytes(0), Bytes(40)};
  backend.OnOutsideBlock(kX, block, PoolId::kHost);
  backend.Copy(PoolId::kHost, Direction::kToHost, block, block, Bytes(40), {});
  backend.Synchronize();
  const StreamTimes times = backend.TakeTimeline();
  // The pieces start at 0, 10, 50 and 90 ns; the first piece is compressed from 10 to 50 ns.
  EXPECT_EQ(times[Index(Stream::kToHost)].at(0).end, Ns(100));
  EXPECT_EQ(backend.compression_times().staging, Ns(30 + 30));
  EXPECT_EQ(backend.compression_times().compress, Ns(160));
}

TEST_F(CompressedCopies, WhatIsNotKeptCrossesInOnePiece) {
  const StreamTimes times = OutAndBack(Bytes(30), 1, 1, TensorId{1});
  EXPECT_EQ(times[Index(Stream::kToHost)].at(0).end, cost_.CopyTime(Direction::kToHost, Bytes(30)));
  EXPECT_EQ(measured_.compress, Duration());
}

// --- Runs ---------------------------------------------------------------------------------------

class CompressedRuns : public ::testing::Test {
 protected:
  CompressedRuns()
      : device_(testing::NarrowDevice()),
        cost_(device_),
        trace_(LowerNetwork(testing::Chain(), {64, "torch", true})) {
    RegisterBuiltinPolicies(registry_);
  }

  std::unique_ptr<Policy> Make() const { return registry_.Make(policy_); }

  Outcome Run(const std::string& compression) const {
    Case asked;
    if (!compression.empty()) asked.compress = ParseCompression(compression);
    const PolicyChoice policy(policy_, [this] { return Make(); });
    return lab::Run(
        Decide(asked, {Borrow(trace_), device_, Borrow(cost_), Bytes::GiB(1), "best-fit", policy}));
  }

  std::string policy_ = "vdnn-all";
  PolicyRegistry registry_;
  Device device_;
  RooflineCostModel cost_;
  Trace trace_;
};

TEST_F(CompressedRuns, NoPolicySeesIt) {
  for (const char* policy : {"vdnn-all", "vdnn-conv", "vdnn-dyn", "vdnnpp"}) {
    policy_ = policy;
    const Outcome plain = Run("");
    const Outcome compressed = Run("all:density=0.3,piece=32KiB");
    EXPECT_EQ(compressed.report.decisions, plain.report.decisions);
    EXPECT_EQ(compressed.report.placements, plain.report.placements);
    EXPECT_THAT(Check(trace_, compressed.report), IsEmpty());
    EXPECT_GE(compressed.report.metrics.iteration, plain.report.metrics.iteration);
    EXPECT_EQ(compressed.compression->storages > 0, plain.report.metrics.offloaded > Bytes(0));
    EXPECT_EQ(compressed.compression->plain_peak, plain.report.metrics.pinned_peak);
    EXPECT_FALSE(plain.compression);
  }
}

TEST_F(CompressedRuns, HiddenIsNoSlower) {
  const Outcome plain = Run("");
  for (const char* threads : {"1", "4", "64"}) {
    const Outcome hidden = Run(std::string("hidden:density=0.3,piece=32KiB,threads=") + threads);
    EXPECT_LE(hidden.report.metrics.iteration, plain.report.metrics.iteration);
    EXPECT_EQ(hidden.compression->hides, true);
  }
  device_.codec.compress = device_.codec.decompress = {1'000'000};  // too slow to hide any copy
  EXPECT_EQ(Run("hidden:density=0.3,threads=1").compression->storages, 0);
  EXPECT_EQ(Run("hidden:density=0.3,threads=1").compression->staging, Bytes(0));
  const Outcome all = Run("all:density=0.3,threads=1");
  EXPECT_EQ(all.compression->hides, false);
  EXPECT_GT(all.report.metrics.iteration, plain.report.metrics.iteration);
}

TEST_F(CompressedRuns, EachOffloadedStorageIsListed) {
  const Outcome outcome = Run("all:density=0.3,piece=32KiB");
  std::set<TensorId> copied;
  for (const TimelineEntry& entry : outcome.report.timeline) {
    if (entry.kind == CommandKind::kToHost) copied.insert(entry.tensor);
  }
  const CompressionSummary& summary = *outcome.compression;
  ASSERT_EQ(summary.offloaded.size(), copied.size());
  int64_t compressed = 0;
  for (const OffloadedStorage& storage : summary.offloaded) {
    const Tensor& tensor = trace_.tensor(storage.storage);
    SCOPED_TRACE(tensor.name);
    EXPECT_TRUE(copied.contains(storage.storage));
    EXPECT_EQ(storage.size, tensor.size);
    compressed += storage.compressed ? 1 : 0;
    ASSERT_EQ(storage.held.has_value(), storage.compressed);
    if (tensor.kind == TensorKind::kActivation) {
      EXPECT_EQ(storage.density, 0.3);
    }
    if (!storage.held) continue;
    // The mask takes 1/32 of the words, and blocks of the store may be partly filled.
    EXPECT_GE(storage.held->count(), storage.size.count() * 3 / 10);
    EXPECT_LT(*storage.held, storage.size);
  }
  EXPECT_EQ(compressed, summary.storages);
  EXPECT_GT(compressed, 0);
  const Outcome dense = Run("all:density=1");
  ASSERT_EQ(dense.compression->offloaded.size(), copied.size());
  EXPECT_FALSE(dense.compression->offloaded.front().compressed);
}

TEST(CompressionSummaryTest, WhatWasMeasuredReplacesWhatWasPredicted) {
  CompressionSummary summary;
  summary.offloaded = {{TensorId{1}, Bytes(800), 0.5, true, Bytes(500)},
                       {TensorId{2}, Bytes(800), std::nullopt, false, std::nullopt}};
  summary.Measured({{TensorId{1}, Bytes(800), Bytes(300), 0.25}}, Bytes(300));
  EXPECT_EQ(summary.pageable_peak, Bytes(300));
  EXPECT_EQ(summary.offloaded[0].density, 0.25);
  EXPECT_EQ(summary.offloaded[0].held, Bytes(300));
  EXPECT_EQ(summary.offloaded[1].density, std::nullopt);
}

TEST_F(CompressedRuns, DenseMapsAreLeftAlone) {
  EXPECT_EQ(Run("all:density=1").compression->storages, 0);
  EXPECT_GT(Run("all:density=0.2,piece=32KiB,fraction=1,threads=1,saving=0").compression->storages,
            0);
  EXPECT_EQ(Run("all:density=0.2,saving=1").compression->storages, 0);
}

TEST_F(CompressedRuns, NeedsDensities) {
  EXPECT_THROW(Run("all"), UsageError);
  EXPECT_THROW(Run("hidden"), UsageError);
}

TEST_F(CompressedRuns, MoreThreadsAreNoSlower) {
  device_.codec.compress = device_.codec.decompress = {1'000'000};
  const auto time = [&](const char* text) { return Run(text).report.metrics.iteration; };
  EXPECT_LT(time("all:density=0.3,piece=32KiB,threads=64"),
            time("all:density=0.3,piece=32KiB,threads=1"));
}

// --- The user's settings -------------------------------------------------------------------------

template <typename Error, typename Action>
std::string MessageOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CompressionSpecification, RefusesWhatItDoesNotKnow) {
  const Device device = testing::RoundDevice();
  const auto message = [&](const char* text) {
    return MessageOf<UsageError>([&] { ParseCompression(text); });
  };
  EXPECT_THAT(message("hiden"), HasSubstr("did you mean 'hidden'"));
  EXPECT_THAT(message("all:density=1.5"), HasSubstr("density='1.5'"));
  EXPECT_THAT(message("all:density=-1"), HasSubstr("density='-1'"));
  EXPECT_THAT(message("all:saving=2"), HasSubstr("saving='2'"));
  EXPECT_THAT(message("all:slower=x"), HasSubstr("slower='x'"));
  EXPECT_THAT(message("all:threads=0"), HasSubstr("threads='0'"));
  EXPECT_THAT(message("all:piece=1B"), HasSubstr("piece"));
  EXPECT_THAT(message("all:colour=red"), HasSubstr("colour"));
  EXPECT_THROW(CompressionPlan(ParseCompression("all:density=/nowhere.csv"), device), InputError);
  EXPECT_EQ(
      CompressionPlan(ParseCompression("all:threads=3"), device).machine.compress.bytes_per_second,
      3 * device.codec.compress.bytes_per_second);
}

TEST(CompressionDensities, AreReadAndWritten) {
  Trace trace = testing::TraceBuilder()
                    .Tensor("x", TensorKind::kInput, 8)
                    .Tensor("y, z", TensorKind::kActivation, 8)
                    .Op("f", Phase::kForward, {"x"}, {"y, z"})
                    .Build();
  const std::string text = FormatDensities(
      trace, {{TensorId{0}, Bytes(8), Bytes(4), 0.25}, {TensorId{1}, Bytes(8), Bytes(8), 1}});
  const Densities densities = ParseDensities(text, "d.csv");
  EXPECT_EQ(densities, (Densities{{"x", 0.25}, {"y, z", 1}}));
  EXPECT_EQ(ParseDensities(FormatDensities(trace, {}), "d.csv").size(), 0U);
}

TEST(CompressionDensities, BadFilesAreRefusedWithTheirLine) {
  const auto message = [](const char* text) {
    return MessageOf<InputError>([&] { ParseDensities(text, "d.csv"); });
  };
  EXPECT_EQ(message(""), "d.csv:1:1: the file is empty");
  EXPECT_THAT(message("a,b\n"), HasSubstr("d.csv:1:1: expected a header"));
  EXPECT_THAT(message("tensor,density\nx\n"), HasSubstr("d.csv:2:1: expected a tensor"));
  EXPECT_THAT(message("tensor,density\nx,1.1\n"), HasSubstr("'1.1' is not a density"));
  EXPECT_THAT(message("tensor,density\nx,nan\n"), HasSubstr("'nan' is not a density"));
  EXPECT_THAT(message("tensor,density\nx,0.5\nx,0.5\n"),
              HasSubstr("d.csv:3:1: 'x' is there twice"));
}

}  // namespace
}  // namespace spillway::testing
