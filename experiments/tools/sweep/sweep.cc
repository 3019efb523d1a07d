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

#include "experiments/run/case_keys.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/params.h"
#include "traces/base/sha256.h"
#include "traces/format.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

// The maximum number of cells that a thread takes together. Large portions reduce contention.
constexpr uint64_t kLargestPortion = 32;
// The number of portions that each thread should get.
constexpr uint64_t kPortions = 8;

int ThreadsOf(int jobs) {
  return jobs > 0 ? jobs : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// A `Job` is a cell that must be computed.
struct Job {
  Case cell;
  std::string key;
  CellProvenance provenance;
  std::shared_ptr<Lazy<Inputs>> inputs;
  std::shared_ptr<Lazy<std::string>> sha256;  // hash of the trace in its file format
};

// A `Walk` visits the cells of a shard in order. Consecutive cells share inputs where possible.
class Walk {
 public:
  Walk(const Grid& grid, const Shard& shard, const SweepStore* store)
      : grid_(grid), shard_(shard), store_(store) {}

  // Returns the next cell that the store lacks, or nullopt after the last. Adds every visited cell
  // to `counts`, with the status of each cell that the store has.
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
      if (!status) return Share(std::move(job));
      ++counts.present;
      Count(status->status, status->reason, counts);
    }
    return std::nullopt;
  }

  static void Count(std::string_view status, const std::string& reason, SweepCounts& counts) {
    ++(status == "ok" ? counts.ok : status == "oom" ? counts.oom : counts.failed);
    if (status == "failed") ++counts.failures[reason];
  }

 private:
  Job Share(Job job) {
    job.inputs = cache_.Of(job.cell);
    if (job.inputs != inputs_) {
      inputs_ = job.inputs;
      sha256_ = std::make_shared<Lazy<std::string>>([inputs = inputs_] {
        return std::make_shared<const std::string>(Sha256(FormatTrace(*inputs->Get()->trace())));
      });
    }
    job.sha256 = sha256_;
    return job;
  }

  const Grid& grid_;
  const Shard shard_;
  const SweepStore* store_;
  Fingerprints fingerprints_;
  uint64_t at_ = 0;
  uint64_t fingerprinted_ = ~uint64_t{0};
  CellProvenance provenance_;  // inputs of the group `fingerprinted_`
  InputCache cache_;
  std::shared_ptr<Lazy<Inputs>> inputs_;
  std::shared_ptr<Lazy<std::string>> sha256_;
};

RunResult Compute(Job& job, const BackendFactories& backends) {
  return WithContext(
      [&] { return RunForRow(job.cell, *job.inputs->Get(), {}, Certificate::kNone, backends); },
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

namespace {

// Returns the command of the cell with the options of its workload apart. The keys of stores were
// made of it before the options became part of the workload's text.
std::string IdentityOf(const Case& cell) {
  std::string text = Quoted(cell.workload);
  for (const WorkloadOption& option : WorkloadOptions()) {
    const std::string value = option.get(cell);
    if (!value.empty() && value != option.initial) {
      text += fmt::format(" --{} {}", option.name, Quoted(value));
    }
  }
  return text + CommandOf(cell).substr(Quoted(WorkloadText(cell)).size());
}

}  // namespace

CellProvenance Fingerprints::ProvenanceOf(const Case& cell) {
  CellProvenance from;
  from.model = kModelVersion;
  const bool generated = !IsTraceFile(cell.workload);
  from.trace = {cell.workload, generated ? "" : HashOf(cell.workload)};
  if (generated) {
    from.trace.name += fmt::format(" {} {}", cell.preset.value_or("torch"),
                                   cell.training.value_or(true) ? "training" : "inference");
  }
  const std::string device = DeviceBase(cell.device);
  from.device = device.ends_with(".toml") ? CellInput{device, HashOf(device)}
                                          : DataInput(fmt::format("sim/devices/{}.toml", device));
  from.cost_table = {cell.cost.text(), ""};
  if (cell.cost.automatic()) {
    Workload workload;
    if (generated) {
      workload = ParseWorkload(cell.workload);
    } else {
      const auto [known, is_new] = workloads_.try_emplace(cell.workload);
      if (is_new) {
        const Trace trace = LoadTrace({cell.workload});
        known->second = {trace.network, BatchOfKernels(trace)};
      }
      workload = known->second;
    }
    const std::string name = std::filesystem::path(device).stem();
    std::vector<CellInput> tables;
    for (const auto& path : TablesOf(workload.network, workload.batch, name)) {
      tables.push_back(DataInput(path.string()));
    }
    if (tables.size() == 3) {  // there is no table for this batch
      from.cost_table = {fmt::format("{} {}", tables[1].name, tables[2].name),
                         Sha256(tables[1].sha256 + tables[2].sha256)};
    } else if (!tables[0].sha256.empty()) {
      from.cost_table = tables[0];
    }
  } else if (cell.cost.table()) {
    from.cost_table.sha256 = HashOf(cell.cost.text());
  }
  from.policy = PolicyInput(cell.policy);
  return from;
}

CellInput Fingerprints::PolicyInput(const PolicyChoice& policy) {
  const std::string& plugin = policy.spec().plugin;
  return {policy.name(), plugin.empty() ? "" : HashOf(plugin)};
}

std::string Fingerprints::KeyOf(const Case& cell, const CellProvenance& provenance,
                                const std::string& more) const {
  std::string text = fmt::format("{}\n{}\n{}", kModelVersion, IdentityOf(cell), more);
  for (const CellInput* input :
       {&provenance.trace, &provenance.device, &provenance.cost_table, &provenance.policy}) {
    text += fmt::format("{} {}\n", input->name, input->sha256);
  }
  if (cell.compress && IsFile(cell.compress->densities_file)) {
    text += Sha256(ReadFile(cell.compress->densities_file));
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
      const bool other_group = !taken.empty() && taken[0].inputs != next->inputs;
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
      job.provenance.trace.sha256 = *job.sha256->Get();
      store.Put(std::move(job.key), CommandOf(job.cell), RowOf(result), std::move(job.provenance));
      {
        const std::lock_guard lock(counts_mutex);
        Walk::Count(result.fits()            ? "ok"
                    : result.failure.empty() ? "oom"
                                             : "failed",
                    result.failure, counts);
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
  // The sample is spread over the grid. The step is coprime to the size of the grid, so that the
  // sample includes all policies.
  uint64_t step = grid.size() / samples;
  while (std::gcd(step, grid.size()) != 1) ++step;
  for (uint64_t s = 0; s < samples && (s == 0 || SecondsSince(start) < patience); ++s) {
    const Case cell = grid.at(s * step % grid.size());
    const auto load = std::chrono::steady_clock::now();
    const Inputs inputs(cell);
    inputs.IdealOf(cell);
    loading += SecondsSince(load);
    const auto play = std::chrono::steady_clock::now();
    RunForRow(cell, inputs, {}, Certificate::kNone, backends);
    playing += SecondsSince(play);
    ++done;
  }
  const double each =
      (loading / static_cast<double>(grid.group()) + playing) / static_cast<double>(done);
  return each * static_cast<double>(cells) / ThreadsOf(jobs);
}

}  // namespace spillway::lab
