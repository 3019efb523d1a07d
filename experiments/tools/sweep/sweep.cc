#include "experiments/tools/sweep/sweep.h"

#include <fmt/format.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "experiments/run/catalogue.h"
#include "policies/plugin/library.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/params.h"
#include "traces/base/sha256.h"
#include "traces/format.h"
#include "traces/zoo/zoo.h"

namespace spillway {
namespace {

// Cells that a thread takes at once, so that it shares little with the others, and how many such
// portions each should get.
constexpr uint64_t kLargestPortion = 32;
constexpr uint64_t kPortions = 8;

int ThreadsOf(int jobs) {
  return jobs > 0 ? jobs : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Made by the first thread that asks. Throws again for the others what making it threw.
template <typename T>
class Lazy {
 public:
  explicit Lazy(std::function<T()> make) : make_(std::move(make)) {}

  const T& Get() {
    std::call_once(once_, [&] { value_.emplace(make_()); });
    return *value_;
  }

 private:
  std::function<T()> make_;
  std::once_flag once_;
  std::optional<T> value_;
};

// What the cells of a group share.
struct Loaded {
  std::shared_ptr<const Trace> trace;
  std::string sha256;  // of the trace as a file
};
using LazyTrace = std::shared_ptr<Lazy<Loaded>>;
using LazyScenario = std::shared_ptr<Lazy<Scenario>>;

LazyTrace TraceOf(const Cell& cell) {
  return std::make_shared<Lazy<Loaded>>([cell] {
    Trace trace = LoadWorkload(cell.workload, {cell.preset, cell.mode == "training"});
    std::string sha256 = Sha256(FormatTrace(trace));
    return Loaded{std::make_shared<const Trace>(std::move(trace)), std::move(sha256)};
  });
}

// In no memory yet.
LazyScenario ScenarioOf(const Cell& cell, const LazyTrace& trace) {
  return std::make_shared<Lazy<Scenario>>([cell, trace] {
    MachineText machine = cell.machine;
    machine.memory.clear();
    return Scenario(trace->Get().trace, machine);
  });
}

LazyScenario ScenarioIn(const Cell& cell, const LazyScenario& scenario) {
  return std::make_shared<Lazy<Scenario>>(
      [memory = cell.machine.memory, scenario] { return scenario->Get().WithMemory(memory); });
}

// A cell to be computed.
struct Job {
  Cell cell;
  std::string key;
  CellProvenance provenance;
  LazyTrace trace;
  LazyScenario scenario;
};

// Walks over the cells of a shard and lets those that follow one another share what they can.
class Walk {
 public:
  Walk(const Grid& grid, const Shard& shard, const SweepStore* store)
      : grid_(grid), shard_(shard), store_(store) {}

  // The next cell that is missing; nullopt after the last. `counts` takes the others.
  std::optional<Job> Next(SweepCounts& counts) {
    while (at_ < grid_.size()) {
      const uint64_t i = at_++;
      if (!shard_.Has(grid_, i)) continue;
      ++counts.cells;
      Job job;
      job.cell = grid_.at(i);
      if (i / grid_.group() != fingerprinted_) provenance_ = fingerprints_.ProvenanceOf(job.cell);
      fingerprinted_ = i / grid_.group();
      job.provenance = provenance_;
      job.provenance.policy = fingerprints_.PolicyInput(job.cell.policy);
      job.key = fingerprints_.KeyOf(job.cell, job.provenance);
      const auto status = store_ != nullptr ? store_->StatusOf(job.key) : std::nullopt;
      if (!status) return Share(std::move(job), i / grid_.group());
      ++counts.present;
      Count(*status, counts);
    }
    return std::nullopt;
  }

  static void Count(std::string_view status, SweepCounts& counts) {
    ++(status == "ok" ? counts.ok : status == "oom" ? counts.oom : counts.failed);
  }

 private:
  Job Share(Job job, uint64_t group) {
    const Cell& cell = job.cell;
    if (group != group_) {
      const bool same = trace_ && cell.workload == last_.workload && cell.preset == last_.preset &&
                        cell.mode == last_.mode;
      if (!same) trace_ = TraceOf(cell);
      plain_ = ScenarioOf(cell, trace_);
      scenario_ = nullptr;
      group_ = group;
    }
    if (!scenario_ || cell.machine.memory != last_.machine.memory) {
      scenario_ = ScenarioIn(cell, plain_);
    }
    last_ = cell;
    job.trace = trace_;
    job.scenario = scenario_;
    return job;
  }

  const Grid& grid_;
  const Shard shard_;
  const SweepStore* store_;
  Fingerprints fingerprints_;
  uint64_t at_ = 0;
  uint64_t group_ = ~uint64_t{0}, fingerprinted_ = ~uint64_t{0};
  CellProvenance provenance_;  // of the group `fingerprinted_`
  Cell last_;
  LazyTrace trace_;
  LazyScenario plain_, scenario_;
};

RunResult Compute(Job& job, const BackendFactories& backends) {
  return WithContext(
      [&] {
        return PlayForRow(job.scenario->Get(), job.cell.policy, {}, Certificate::kNone, backends);
      },
      [&] { return CommandOf(job.cell); });
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Shard Shard::Parse(std::string_view text) {
  Shard shard;
  const size_t slash = text.find('/');
  const auto number = [&](std::string_view part, int& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size();
  };
  if (slash == std::string_view::npos || !number(text.substr(0, slash), shard.index) ||
      !number(text.substr(slash + 1), shard.count) || shard.index < 1 ||
      shard.count < shard.index || shard.count > 100'000) {
    throw UsageError(
        fmt::format("'{}' is no shard: expected i/n with i from 1 to n, such as 2/8", text));
  }
  return shard;
}

bool Shard::Has(const Grid& grid, uint64_t cell) const {
  const auto n = static_cast<uint64_t>(count);
  const bool by_group = grid.size() / grid.group() >= 4 * n;
  return (by_group ? cell / grid.group() : cell) % n == static_cast<uint64_t>(index) - 1;
}

uint64_t Shard::Size(const Grid& grid) const {
  if (count == 1) return grid.size();
  uint64_t size = 0;
  for (uint64_t i = 0; i < grid.size(); ++i) size += Has(grid, i) ? 1 : 0;
  return size;
}

const std::string& Fingerprints::HashOf(const std::string& path) {
  const auto [known, is_new] = hashes_.try_emplace(path);
  if (is_new && IsFile(path)) known->second = Sha256(ReadFile(path));
  return known->second;
}

CellInput Fingerprints::DataInput(const std::string& relative) {
  const auto [known, is_new] = hashes_.try_emplace("data:" + relative);
  if (is_new) {
    const auto path = FindDataFile(relative);
    if (path) known->second = Sha256(ReadFile(*path));
  }
  return {relative, known->second};
}

CellProvenance Fingerprints::ProvenanceOf(const Cell& cell) {
  CellProvenance from;
  from.model = kModelVersion;
  const bool generated = !cell.preset.empty();
  from.trace = {cell.workload, generated ? "" : HashOf(cell.workload)};
  if (generated) from.trace.name += fmt::format(" {} {}", cell.preset, cell.mode);
  const MachineText& machine = cell.machine;
  const std::string device = DeviceBase(machine.device);
  from.device = device.ends_with(".toml") ? CellInput{device, HashOf(device)}
                                          : DataInput(fmt::format("sim/devices/{}.toml", device));
  from.cost_table = {machine.cost, ""};
  if (machine.cost == "auto") {
    Workload workload;
    if (generated) {
      workload = ParseWorkload(cell.workload);
    } else {
      const auto [known, is_new] = workloads_.try_emplace(cell.workload);
      if (is_new) {
        const Trace trace = LoadWorkload(cell.workload, {});
        known->second = {trace.network, trace.batch};
      }
      workload = known->second;
    }
    const std::string name = std::filesystem::path(device).stem();
    const auto recorded = [&](int64_t batch) {
      return DataInput(RecordedTablePath(name, workload.network, batch).string());
    };
    const CellInput own = recorded(workload.batch);
    const auto around = FindBatchesAround(workload.network, workload.batch, name);
    if (!own.sha256.empty()) {
      from.cost_table = own;
    } else if (around) {
      const CellInput below = recorded(around->below), above = recorded(around->above);
      from.cost_table = {fmt::format("{} {}", below.name, above.name),
                         Sha256(below.sha256 + above.sha256)};
    }
  } else if (machine.cost != "roofline") {
    from.cost_table.sha256 = HashOf(machine.cost);
  }
  from.policy = PolicyInput(cell.policy);
  return from;
}

CellInput Fingerprints::PolicyInput(const std::string& policy) {
  const std::string plugin = ParsePolicySpec(policy).plugin;
  return {policy, plugin.empty() ? "" : HashOf(plugin)};
}

std::string Fingerprints::KeyOf(const Cell& cell, const CellProvenance& provenance,
                                const std::string& more) const {
  std::string text = fmt::format("{}\n{}\n{}", kModelVersion, CommandOf(cell), more);
  for (const CellInput* input :
       {&provenance.trace, &provenance.device, &provenance.cost_table, &provenance.policy}) {
    text += fmt::format("{} {}\n", input->name, input->sha256);
  }
  if (!cell.machine.compress.empty()) {
    const auto values = ParseSpecification("compress", cell.machine.compress).values;
    const auto density = values.find("density");
    if (density != values.end() && IsFile(density->second)) {
      text += Sha256(ReadFile(density->second));
    }
  }
  return Sha256(text).substr(0, 32);
}

SweepCounts CountCells(const Grid& grid, const Shard& shard, const SweepStore* store) {
  SweepCounts counts;
  if (store == nullptr || store->Size() == 0) {
    counts.cells = shard.Size(grid);
    return counts;
  }
  Walk walk(grid, shard, store);
  while (walk.Next(counts)) {
  }
  return counts;
}

SweepCounts RunSweep(const Grid& grid, const Shard& shard, SweepStore& store,
                     const SweepCounts& before, int jobs, const std::string& program,
                     const SweepProgress& progress, const BackendFactories& backends) {
  const auto threads = static_cast<uint64_t>(ThreadsOf(jobs));
  const uint64_t missing = before.cells - before.present;
  const uint64_t portion =
      std::clamp(missing / (threads * kPortions), uint64_t{1}, kLargestPortion);
  SweepCounts counts;
  std::mutex counts_mutex;
  Walk walk(grid, shard, &store);
  std::optional<Job> next = walk.Next(counts);
  const auto take = [&](tbb::flow_control& control) {
    std::vector<Job> taken;
    while (next && taken.size() < portion) {
      const bool other_group = !taken.empty() && taken[0].trace != next->trace;
      if (other_group) break;
      taken.push_back(std::move(*next));
      const std::lock_guard lock(counts_mutex);
      next = walk.Next(counts);
    }
    if (taken.empty()) control.stop();
    return taken;
  };
  const auto compute = [&](std::vector<Job> taken) {
    for (Job& job : taken) {
      const RunResult result = Compute(job, backends);
      job.provenance.program = program;
      job.provenance.trace.sha256 = job.trace->Get().sha256;
      store.Put(std::move(job.key), CommandOf(job.cell), RowOf(result), std::move(job.provenance));
      {
        const std::lock_guard lock(counts_mutex);
        Walk::Count(result.fits() ? "ok" : result.failure.empty() ? "oom" : "failed", counts);
      }
      if (progress.finished) progress.finished(job.cell, result);
    }
  };
  tbb::task_arena arena(static_cast<int>(threads));
  arena.execute([&] {
    tbb::parallel_pipeline(
        threads * 2,
        tbb::make_filter<void, std::vector<Job>>(tbb::filter_mode::serial_in_order, take) &
            tbb::make_filter<std::vector<Job>, void>(tbb::filter_mode::parallel, compute));
  });
  store.Commit();
  return counts;
}

double EstimateSweep(const Grid& grid, uint64_t cells, int jobs, double patience,
                     const BackendFactories& backends) {
  constexpr uint64_t kSamples = 48;
  if (cells == 0) return 0;
  const auto start = std::chrono::steady_clock::now();
  const uint64_t samples = std::min(kSamples, grid.size());
  double loading = 0, playing = 0;
  uint64_t done = 0;
  // Spread over the grid; a step that shares no factor with the grid's size meets all policies.
  uint64_t step = grid.size() / samples;
  while (std::gcd(step, grid.size()) != 1) ++step;
  for (uint64_t s = 0; s < samples && (s == 0 || SecondsSince(start) < patience); ++s) {
    const Cell cell = grid.at(s * step % grid.size());
    const auto load = std::chrono::steady_clock::now();
    const LazyTrace trace = TraceOf(cell);
    const LazyScenario scenario = ScenarioIn(cell, ScenarioOf(cell, trace));
    scenario->Get();
    loading += SecondsSince(load);
    const auto play = std::chrono::steady_clock::now();
    PlayForRow(scenario->Get(), cell.policy, {}, Certificate::kNone, backends);
    playing += SecondsSince(play);
    ++done;
  }
  const double each =
      (loading / static_cast<double>(grid.group()) + playing) / static_cast<double>(done);
  return each * static_cast<double>(cells) / ThreadsOf(jobs);
}

}  // namespace spillway
