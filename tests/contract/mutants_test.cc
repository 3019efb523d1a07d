// Shows that the tests can fail. Each mutant breaks one rule between runtime, allocator and
// backend, as a wrapper around sound parts. The properties that the suites check (bits, order,
// overlaps, parity) must reveal it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "sim/alloc/best_fit.h"
#include "sim/core/check.h"
#include "sim/core/forwarding_allocator.h"
#include "sim/core/forwarding_backend.h"
#include "sim/cost/roofline.h"
#include "sim/engine/sim_backend.h"
#include "sim/runtime/runtime.h"
#include "tests/testing/mixing.h"
#include "tests/testing/networks.h"
#include "traces/lowering/lowering.h"

namespace spillway::testing {
namespace {

using ::testing::IsEmpty;

constexpr Bytes kMemory = Bytes::MiB(64);

// A policy that offloads and releases every activation after each forward op that reads it, and
// never fences. Only the runtime's own waits prevent wrong bits.
class EagerPolicy final : public Policy {
 public:
  void AfterOp(PolicyContext& context, OpId op) override {
    const Op& step = context.trace().op(op);
    if (step.phase != Phase::kForward) return;
    for (const TensorId input : step.inputs) {
      if (context.trace().tensor(input).kind == TensorKind::kParameter) continue;
      if (context.Offload(input)) context.Release(input);
    }
  }
};

class Mutants : public ::testing::Test {
 protected:
  struct Result {
    Report report;
    std::vector<std::vector<uint64_t>> read;  // per op; see MixingOps
    std::vector<std::string> violations;

    bool in_order() const {
      return std::none_of(violations.begin(), violations.end(), [](const std::string& violation) {
        return violation.find("starts before") != std::string::npos;
      });
    }
  };

  explicit Mutants(bool lanes = false)
      : trace_(lanes ? WithLanes(Lowered()) : Lowered()),
        device_(testing::NarrowDevice()),
        cost_(device_) {}

  static Trace Lowered() { return LowerNetwork(testing::Chain(), {3, "vdnn", true}); }
  static Trace WithLanes(Trace trace) {
    for (size_t i = 0; i < trace.ops.size(); ++i)
      trace.ops[i].lane = static_cast<uint8_t>(i * i % kMaxLanes);
    return trace;
  }

  Report Run(Backend& backend, Allocator& arena) const {
    EagerPolicy policy;
    BestFit host_pool(kMemory, device_.alignment);
    RuntimeParts parts;
    parts.trace = &trace_;
    parts.device = &device_;
    parts.cost = &cost_;
    parts.arena = &arena;
    parts.pools[0] = &host_pool;
    parts.backend = &backend;
    parts.policy = &policy;
    RuntimeOptions options;
    options.iterations = 3;
    return sim::Run(parts, options);
  }

  // Executes on the CPU, through the backend that `wrap` returns.
  template <typename Wrap>
  Result Execute(std::optional<uint64_t> drain_seed, Allocator& arena, Wrap wrap) const {
    testing::MixingOps ops(trace_);
    CpuBackend backend(trace_, {kMemory, {kMemory}, 7, drain_seed},
                       [&](const Op& op, const auto&, const auto& inputs, const auto& outputs,
                           uint64_t seed) { ops.Run(op, inputs, outputs, seed); });
    auto wrapped = wrap(backend);
    Result result{Run(wrapped, arena), ops.read(), {}};
    result.violations = Check(trace_, result.report, 1000);
    return result;
  }
  template <typename Wrap>
  Result Execute(std::optional<uint64_t> drain_seed, Wrap wrap) const {
    BestFit arena(kMemory, device_.alignment);
    return Execute(drain_seed, arena, wrap);
  }
  static ForwardingBackend AsItIs(Backend& backend) { return ForwardingBackend(backend); }

  // In 30 legal orders of a mutant's commands, several must show wrong bits, and several a wrong
  // order.
  template <typename Wrap>
  void ExpectNoticed(Wrap wrap) const {
    const Result reference = Execute(std::nullopt, AsItIs);
    int wrong_bits = 0, wrong_order = 0;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const Result result = Execute(seed, wrap);
      wrong_bits += result.read == reference.read ? 0 : 1;
      wrong_order += result.in_order() ? 0 : 1;
    }
    EXPECT_GE(wrong_bits, 5);
    EXPECT_GE(wrong_order, 5);
  }

  // Expects that sound runs have the same bits in every order.
  void ExpectAgreement() const {
    const Result reference = Execute(std::nullopt, AsItIs);
    for (uint64_t seed = 1; seed < 20; ++seed) {
      const Result result = Execute(seed, AsItIs);
      EXPECT_EQ(result.read, reference.read);
      EXPECT_THAT(result.violations, IsEmpty());
    }
  }

  const Trace trace_;
  const Device device_;
  const RooflineCostModel cost_;
};

TEST_F(Mutants, SoundRunsAgreeInEveryOrder) { ExpectAgreement(); }

// --- Lost waits ---------------------------------------------------------------------------------

// A backend that drops the waits of one cause and passes on everything else.
class LosesWaits final : public ForwardingBackend {
 public:
  LosesWaits(Backend& backend, WaitCause lost) : ForwardingBackend(backend), lost_(lost) {}

  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    return ForwardingBackend::Enqueue(launch, Kept(waits));
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override {
    return ForwardingBackend::Copy(pool, direction, device, outside, size, Kept(waits));
  }

 private:
  const std::vector<Wait>& Kept(std::span<const Wait> waits) {
    kept_.clear();
    std::copy_if(waits.begin(), waits.end(), std::back_inserter(kept_),
                 [&](const Wait& wait) { return wait.cause != lost_; });
    return kept_;
  }

  const WaitCause lost_;
  std::vector<Wait> kept_;
};

class LostWaits : public Mutants, public ::testing::WithParamInterface<WaitCause> {};

// kFetch: a kernel does not wait for its input. kSource: a copy does not wait for its source.
// kMemory: memory is used again without waiting for its earlier owners.
INSTANTIATE_TEST_SUITE_P(ByCause, LostWaits,
                         ::testing::Values(WaitCause::kFetch, WaitCause::kSource,
                                           WaitCause::kMemory));

TEST_P(LostWaits, AreSeenInTheBitsAndInTheOrder) {
  ExpectNoticed([](Backend& backend) { return LosesWaits(backend, GetParam()); });
}

// --- Lanes ---------------------------------------------------------------------------------------

// The ops of a network on several lanes: only waits order them.
class LaneMutants : public Mutants {
 protected:
  LaneMutants() : Mutants(/*lanes=*/true) {}
};

TEST_F(LaneMutants, SoundRunsAgreeInEveryOrder) { ExpectAgreement(); }

TEST_F(LaneMutants, LostWaitsAreSeenInTheBitsAndInTheOrder) {
  for (const WaitCause lost : {WaitCause::kFetch, WaitCause::kMemory}) {
    ExpectNoticed([&](Backend& backend) { return LosesWaits(backend, lost); });
  }
}

// --- A hazard map that ignores reads ------------------------------------------------------------

// A backend that waits only for earlier commands that wrote the memory a command writes. It does
// not wait for commands that only read it.
class IgnoresReads final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    Writes writes;
    for (const auto blocks : {launch.outputs, launch.scratch}) {
      writes.device.insert(writes.device.end(), blocks.begin(), blocks.end());
    }
    writes.device.push_back(launch.workspace);
    const Event event = ForwardingBackend::Enqueue(launch, ForWrites(waits, writes));
    Log(event.stream).push_back(std::move(writes));
    return event;
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override {
    Writes writes;
    (direction == Direction::kToDevice ? writes.device : writes.host)
        .push_back(direction == Direction::kToDevice ? device : outside);
    const Event event =
        ForwardingBackend::Copy(pool, direction, device, outside, size, ForWrites(waits, writes));
    Log(event.stream).push_back(std::move(writes));
    return event;
  }
  StreamTimes TakeTimeline() override {
    for (auto& log : logs_) log.clear();
    return ForwardingBackend::TakeTimeline();
  }

 private:
  struct Writes {
    std::vector<Block> device, host;
  };

  std::vector<Writes>& Log(Stream stream) { return logs_[Index(stream)]; }

  static bool Meet(const std::vector<Block>& a, const std::vector<Block>& b) {
    return std::any_of(a.begin(), a.end(), [&](const Block& block) {
      return std::any_of(b.begin(), b.end(),
                         [&](const Block& other) { return Overlap(block, other); });
    });
  }

  // Each memory wait is moved back to the newest command of its stream that wrote the same bytes.
  const std::vector<Wait>& ForWrites(std::span<const Wait> waits, const Writes& writes) {
    kept_.clear();
    for (Wait wait : waits) {
      if (wait.cause == WaitCause::kMemory) {
        const auto& log = Log(wait.event.stream);
        while (wait.event && !Meet(log[wait.event.sequence - 1].device, writes.device) &&
               !Meet(log[wait.event.sequence - 1].host, writes.host)) {
          --wait.event.sequence;
        }
      }
      if (wait.event) kept_.push_back(wait);
    }
    return kept_;
  }

  std::array<std::vector<Writes>, kStreamCount> logs_;
  std::vector<Wait> kept_;
};

TEST_F(Mutants, AHazardMapWithoutReadsIsSeenInTheBitsAndInTheOrder) {
  ExpectNoticed([](Backend& backend) { return IgnoresReads(backend); });
}

// --- Release on completion ----------------------------------------------------------------------

// A device on which a command has completed once `lag` more commands were issued. The lag is the
// speed of the device as the host sees it.
class Progress final : public ForwardingBackend {
 public:
  Progress(Backend& backend, size_t lag) : ForwardingBackend(backend), lag_(lag) {}

  Event Enqueue(const Launch& launch, std::span<const Wait> waits) override {
    ++issued_;
    return ForwardingBackend::Enqueue(launch, waits);
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) override {
    ++issued_;
    return ForwardingBackend::Copy(pool, direction, device, outside, size, waits);
  }

  size_t issued() const { return issued_; }
  size_t completed() const { return issued_ - std::min(issued_, lag_); }

 private:
  const size_t lag_;
  size_t issued_ = 0;
};

// An allocator that frees memory when the commands issued before `Free` have completed, not at the
// call of `Free`.
class FreesOnCompletion final : public ForwardingAllocator {
 public:
  FreesOnCompletion(Allocator& allocator, const Progress& progress)
      : ForwardingAllocator(allocator), progress_(progress) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    while (!waiting_.empty() && waiting_.front().first <= progress_.completed()) {
      ForwardingAllocator::Free(waiting_.front().second);
      waiting_.pop_front();
    }
    return ForwardingAllocator::Allocate(size, hint);
  }
  void Free(const Block& block) override { waiting_.emplace_back(progress_.issued(), block); }

 private:
  const Progress& progress_;
  std::deque<std::pair<size_t, Block>> waiting_;
};

TEST_F(Mutants, ReleaseOnCompletionBreaksParity) {
  const auto placements = [&](size_t lag, bool simulated, bool mutant) {
    testing::MixingOps ops(trace_);
    CpuBackend cpu(trace_, {kMemory, {kMemory}, 7, 3},
                   [&](const Op& op, const auto&, const auto& inputs, const auto& outputs,
                       uint64_t seed) { ops.Run(op, inputs, outputs, seed); });
    SimBackend sim(device_, cost_);
    Progress progress(simulated ? static_cast<Backend&>(sim) : cpu, lag);
    BestFit arena(kMemory, device_.alignment);
    FreesOnCompletion late(arena, progress);
    return Run(progress, mutant ? static_cast<Allocator&>(late) : arena).placements;
  };
  // Sound parts give equal placements on both backends, however fast the backends are.
  const auto sound = placements(0, /*simulated=*/true, /*mutant=*/false);
  for (const size_t lag : {0, 1, 2, 4, 8}) {
    EXPECT_EQ(placements(lag, /*simulated=*/false, /*mutant=*/false), sound) << lag;
  }
  // The mutant gives equal placements only at equal speed.
  const auto fast = placements(0, /*simulated=*/true, /*mutant=*/true);
  EXPECT_EQ(placements(0, /*simulated=*/false, /*mutant=*/true), fast);
  for (const size_t lag : {1, 2, 4, 8}) {
    EXPECT_NE(placements(lag, /*simulated=*/false, /*mutant=*/true), fast) << lag;
  }
}

// --- A release too early ------------------------------------------------------------------------

// An allocator that releases one block too early, before the last request that precedes its
// release. The block's hazards do not exist yet when its bytes get their next owner. The block is
// the `victim`-th release in the order of a sound run.
class ReleasesEarly final : public ForwardingAllocator {
 public:
  // The requests and releases of a run. Requests are numbered, and a release names the request of
  // its block.
  struct Script {
    struct Release {
      size_t request;  // number of the block's request
      size_t before;   // number of requests made before the release
    };
    std::vector<Release> releases;
  };

  // Without a victim, the allocator only writes the script.
  ReleasesEarly(Allocator& allocator, Script& script, std::optional<size_t> victim)
      : ForwardingAllocator(allocator), script_(script), victim_(victim) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    if (victim_) {
      const Script::Release& release = script_.releases[*victim_];
      if (release.before == requests_ + 1 && release.request < requests_) {
        early_ = held_.at(release.request);
        ForwardingAllocator::Free(*early_);
      }
    }
    const auto block = ForwardingAllocator::Allocate(size, hint);
    if (early_ && block && held_.contains(script_.releases[*victim_].request)) {
      overlapped_ = overlapped_ || Overlap(*early_, *block);
    }
    held_[requests_++] = *block;
    return block;
  }

  void Free(const Block& block) override {
    const auto owner = std::find_if(held_.begin(), held_.end(), [&](const auto& entry) {
      return entry.second == block && entry.second.handle == block.handle;
    });
    const size_t request = owner->first;
    held_.erase(owner);
    if (!victim_) script_.releases.push_back({request, requests_});
    // The block is free already.
    if (early_ && request == script_.releases[*victim_].request) return;
    ForwardingAllocator::Free(block);
  }

  // Returns true iff two live blocks shared bytes.
  bool overlapped() const { return overlapped_; }

 private:
  Script& script_;
  const std::optional<size_t> victim_;
  size_t requests_ = 0;
  std::map<size_t, Block> held_;  // request -> block
  std::optional<Block> early_;
  bool overlapped_ = false;
};

TEST_F(Mutants, AReleaseTooEarlyIsAlwaysNoticed) {
  ReleasesEarly::Script script;
  const auto run = [&](std::optional<size_t> victim, bool& overlapped) {
    BestFit arena(kMemory, device_.alignment);
    ReleasesEarly mutant(arena, script, victim);
    Result result = Execute(5, mutant, AsItIs);
    overlapped = mutant.overlapped();
    return result;
  };
  bool overlapped = false;
  const Result reference = run(std::nullopt, overlapped);
  EXPECT_FALSE(overlapped);
  EXPECT_THAT(reference.violations, IsEmpty());
  int shared = 0, wrong_bits = 0, complaints = 0;
  for (size_t victim = 0; victim < script.releases.size(); ++victim) {
    const Result result = run(victim, overlapped);
    if (!overlapped) continue;
    ++shared;
    const bool bits = result.read != reference.read;
    wrong_bits += bits ? 1 : 0;
    complaints += result.violations.empty() ? 0 : 1;
    EXPECT_TRUE(bits || !result.violations.empty()) << "release " << victim;
  }
  EXPECT_GE(shared, 20);
  EXPECT_GE(wrong_bits, 5);
  EXPECT_GE(complaints, 5);
}

}  // namespace
}  // namespace spillway::testing
