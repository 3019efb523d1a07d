#include "tests/property/random_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/stand_in.h"
#include "sim/alloc/make_allocator.h"
#include "sim/core/check.h"
#include "sim/engine/sim_backend.h"
#include "sim/runtime/runtime.h"
#include "tests/testing/accounting.h"
#include "tests/testing/mixing.h"
#include "tests/testing/small_pytorch.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

constexpr Bytes kAmple = Bytes::GiB(1);

// The parts that every run of a case shares.
struct Circumstances {
  Trace trace;
  FixedCost cost;
  Device device;
  std::string allocator;
  RuntimeOptions options;
};

struct Result {
  Report report;
  std::vector<std::vector<uint64_t>> read;  // per op; see MixingOps
  std::map<TensorId, uint64_t> left;        // hashes of the persistent tensors
};

// Returns the specification of an allocator: one of all, or one with parameters. PyTorch's
// allocators are scaled down (tests/testing/small_pytorch.h).
std::string AllocatorName(uint8_t number) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made{"high-end:reading=text", "stitched:page=4KiB",
                                  "stitched:page=8KiB", "pytorch:max_split_size=20MiB",
                                  "pytorch:expandable_segments=true"};
    for (const AllocatorInfo& info : Allocators()) made.push_back(info.name);
    return made;
  }();
  return names[number % names.size()];
}

// Returns the options in the name of one of PyTorch's allocators, or nullopt for other allocators.
std::optional<PyTorch::Options> PyTorchOptions(const std::string& allocator) {
  if (!allocator.starts_with("pytorch")) return std::nullopt;
  PyTorch::Options options;
  if (allocator.ends_with("max_split_size=20MiB")) options.max_split_size = Bytes::MiB(20);
  options.expandable_segments = allocator.ends_with("expandable_segments=true");
  return options;
}

Bytes Alignment(uint8_t number) {
  constexpr std::array<int64_t, 4> kAlignments{4, 512, 1, 64};
  return Bytes(kAlignments[number % kAlignments.size()]);
}

// Returns a memory size between 7/8 of the layer bound, in which no run fits, and six times the
// bound. A budget of 0 is ample.
Bytes Memory(uint8_t budget, const Trace& trace, Bytes alignment) {
  if (budget == 0) return kAmple;
  return Bytes(LayerBound(trace, alignment).count() * (0x100 - budget + 0x28) / 0x30);
}

Bytes HostMemory(uint8_t number) {
  constexpr std::array<int64_t, 6> kSizes{0, 1 << 30, 1000, 20000, 100000, 1 << 30};
  return number == 0 ? kAmple : Bytes(kSizes[number % kSizes.size()]);
}

Circumstances MakeCircumstances(const RandomCase& random_case) {
  Circumstances made{MakeTrace(random_case.trace),
                     MakeCost(),
                     RoundDevice(),
                     AllocatorName(random_case.allocator),
                     {}};
  made.device.alignment = Alignment(random_case.alignment);
  made.device.memory = Memory(random_case.budget, made.trace, made.device.alignment);
  made.device.host_memory = HostMemory(random_case.host_pool);
  for (unsigned i = 0; i < random_case.pools % kMaxPools; ++i) {
    ExternalPool pool;
    pool.kind = i == 0 ? ExternalPool::Kind::kPeer : ExternalPool::Kind::kNvme;
    pool.size = HostMemory(static_cast<uint8_t>(random_case.pools / 3 + i));
    pool.in = pool.out = made.device.h2d;
    pool.out.bandwidth.bytes_per_second *= random_case.pools % 5;
    pool.out.bandwidth.bytes_per_second += 1'000'000;
    pool.duplex = made.device.duplex;
    pool.over_host = i > 0;
    made.device.pools.push_back(pool);
  }
  made.options.iterations = 2;
  made.options.charge_input = random_case.charge_input % 2 == 1;
  return made;
}

// Returns a hash of each persistent tensor, wherever it lies at the end.
std::map<TensorId, uint64_t> HashPersistent(const Trace& trace, const Report& report,
                                            const CpuBackend& backend) {
  std::map<TensorId, Placement> device, outside;
  for (const Placement& placement : report.placements) {
    auto& held = placement.on_device() ? device : outside;
    if (placement.kind == PlacementKind::kAllocate) {
      held[placement.tensor] = placement;
    } else if (placement.kind == PlacementKind::kFree) {
      held.erase(placement.tensor);
    }
  }
  device.merge(outside);
  std::map<TensorId, uint64_t> hashes;
  for (const auto& [tensor, placement] : device) {
    if (tensor == kNoTensor) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(trace.tensor(tensor).size.count()));
    backend.Read(placement.block, placement.pool, bytes);
    hashes[tensor] = HashBytes(bytes, 0);
  }
  return hashes;
}

class CaseRunner {
 public:
  CaseRunner(const RandomCase& random_case, const Circumstances& made, Tally& tally,
             std::vector<std::string>& violations)
      : case_(random_case), made_(made), tally_(tally), violations_(violations) {}

  // Executes the case on the CPU. Returns nullopt if an exception was thrown.
  std::optional<Result> Execute(std::string_view what, std::optional<uint64_t> drain_seed) {
    MixingOps ops(made_.trace);
    std::array<Bytes, kMaxPools> pools;
    for (const PoolId pool : PoolsBySpeed(made_.device)) {
      pools[NumberOf(pool)] = SizeOf(made_.device, pool);
    }
    CpuBackend backend(made_.trace, {Bytes::Unlimited(), pools, 11, drain_seed},
                       [&](const Op& op, const auto&, const auto& inputs, const auto& outputs,
                           uint64_t seed) { ops.Run(op, inputs, outputs, seed); });
    auto report = Run(what, backend);
    if (!report) return std::nullopt;
    Result result{std::move(*report), ops.read(), {}};
    if (result.report.fits()) result.left = HashPersistent(made_.trace, result.report, backend);
    return result;
  }

  std::optional<Report> Predict() {
    SimBackend backend(made_.device, made_.cost);
    return Run("simulator", backend);
  }

  void Fail(std::string_view what, std::string_view violation) {
    violations_.push_back(fmt::format("{}: {}", what, violation));
  }

 private:
  std::optional<Report> Run(std::string_view what, Backend& backend) {
    const Device& device = made_.device;
    std::unique_ptr<Allocator> arena;
    std::optional<AccountingAllocator::Caching> caching;
    if (const auto pytorch = PyTorchOptions(made_.allocator)) {
      auto small = std::make_unique<SmallPyTorch>(device.memory, device.alignment, *pytorch);
      caching = {SmallPyTorch::kPage,
                 [allocator = small.get()](Bytes size) { return allocator->MemoryFor(size); }};
      arena = std::move(small);
    } else {
      arena = MakeAllocator(made_.allocator, device.memory, device.alignment);
    }
    AccountingAllocator arena_books(*arena, device.memory, device.alignment, caching);
    std::vector<std::unique_ptr<Allocator>> pools;
    std::array<std::optional<AccountingAllocator>, kMaxPools> pool_books;
    std::vector<const Allocator*> outside;
    for (const PoolId pool : PoolsBySpeed(device)) {
      const Bytes size = SizeOf(device, pool);
      pools.push_back(MakeAllocator("best-fit", size, device.alignment));
      auto& books = pool_books[NumberOf(pool)];
      outside.push_back(&books.emplace(*pools.back(), size, device.alignment));
    }
    RandomPolicy policy(case_.policy, outside);
    RuntimeParts parts;
    parts.trace = &made_.trace;
    parts.device = &device;
    parts.cost = &made_.cost;
    parts.arena = &arena_books;
    for (size_t i = 0; i < kMaxPools; ++i) {
      if (pool_books[i]) parts.pools[i] = &*pool_books[i];
    }
    parts.backend = &backend;
    parts.policy = &policy;
    std::optional<Report> report;
    try {
      report = sim::Run(parts, made_.options);
    } catch (const Error& error) {
      Fail(what, fmt::format("threw \"{}\"", error.what()));
    }
    tally_.verbs += static_cast<int64_t>(policy.verbs());
    for (const std::string& violation : policy.violations()) Fail(what, violation);
    if (!report) return report;
    for (const std::string& violation : Check(made_.trace, *report)) Fail(what, violation);
    std::vector<std::string> books;
    arena_books.Compare(made_.trace, *report, PoolId::kDevice, books);
    for (size_t i = 0; i < kMaxPools; ++i) {
      if (pool_books[i]) pool_books[i]->Compare(made_.trace, *report, OutsidePool(i), books);
    }
    for (const std::string& violation : books) Fail(what, violation);
    return report;
  }

  const RandomCase& case_;
  const Circumstances& made_;
  Tally& tally_;
  std::vector<std::string>& violations_;
};

// Executes in core: in ample memory, without moving tensors, in the order of issue.
std::optional<Result> ExecuteReference(const Circumstances& made, Tally& tally,
                                       std::vector<std::string>& violations) {
  Circumstances ample = made;
  ample.device.memory = ample.device.host_memory = kAmple;
  ample.device.pools.clear();
  return CaseRunner({}, ample, tally, violations).Execute("in core", std::nullopt);
}

bool IsPrefix(const std::vector<uint64_t>& part, const std::vector<uint64_t>& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

std::vector<std::string> Violations(const RandomCase& random_case, Tally& tally) {
  std::vector<std::string> violations;
  const Circumstances made = MakeCircumstances(random_case);
  const auto reference = ExecuteReference(made, tally, violations);
  CaseRunner runner(random_case, made, tally, violations);
  const auto predicted = runner.Predict();
  ++tally.cases;
  if (!reference || !predicted) return violations;
  if (predicted->fits()) {
    ++tally.fitted;
    for (const TimelineEntry& entry : predicted->timeline) {
      tally.copies += entry.kind == CommandKind::kKernel ? 0 : 1;
      tally.reruns += entry.recompute ? 1 : 0;
    }
  }
  for (const auto& [what, seed] :
       {std::pair("in order", std::optional<uint64_t>()),
        std::pair("reordered", std::optional<uint64_t>(random_case.drain_seed)),
        std::pair("reordered again", std::optional<uint64_t>(random_case.drain_seed + 256u))}) {
    const auto executed = runner.Execute(what, seed);
    if (!executed) continue;
    if (executed->report.decisions != predicted->decisions) {
      runner.Fail(what, "decisions are not the simulator's");
    }
    if (executed->report.placements != predicted->placements) {
      runner.Fail(what, "placements are not the simulator's");
    }
    if (executed->report.fits() != predicted->fits()) {
      runner.Fail(what, "fits, or does not, other than on the simulator");
    }
    const bool fits = executed->report.fits();
    for (size_t i = 0; i < made.trace.ops.size(); ++i) {
      const auto& read = executed->read[i];
      if (fits ? read != reference->read[i] : !IsPrefix(read, reference->read[i])) {
        runner.Fail(what, fmt::format("{} reads other bytes than in core", made.trace.ops[i].name));
      }
    }
    if (fits && executed->left != reference->left) {
      runner.Fail(what, "other bytes are left than in core");
    }
  }
  if (!violations.empty()) {
    violations.push_back("the simulator's decisions:\n" + DecisionText(made.trace, *predicted));
  }
  return violations;
}

std::string Describe(const RandomCase& random_case) {
  const Circumstances made = MakeCircumstances(random_case);
  return fmt::format(
      "memory {} (layer bound {}), host {}, {} other pools, alignment {}, allocator {}, {}drain "
      "seed {}\n{}{}",
      made.device.memory.count(), LayerBound(made.trace, made.device.alignment).count(),
      made.device.host_memory.count(), made.device.pools.size(), made.device.alignment.count(),
      made.allocator, made.options.charge_input ? "inputs charged, " : "", random_case.drain_seed,
      Describe(made.trace), RandomPolicy::Describe(random_case.policy, made.trace));
}

}  // namespace spillway::testing
