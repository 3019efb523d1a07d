// The verb `spillway sweep [plan|status|export|merge|submit]` computes the cells of a grid into a
// store.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/commit.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/policies_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/output/run_result.h"
#include "experiments/run/execute.h"
#include "experiments/run/workload_text.h"
#include "experiments/tools/sweep/checkpoint.h"
#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/grid_option.h"
#include "experiments/tools/sweep/result_store.h"
#include "experiments/tools/sweep/slurm.h"
#include "experiments/tools/sweep/sweep.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway::cli {
namespace {

// A `SimulatedGrid` adds the options -o and --jobs to a `GridOption`.
struct SimulatedGrid : GridOption {
  int jobs = 0;

  void Add(Command& verb) {
    GridOption::Add(verb);
    verb.Text("-o,--output", options.output, "Store, a SQLite file").Type("STORE");
    verb.Number("--jobs", jobs, {1, 1024},
                "Threads; any number gives the same results (default: one per core)");
  }
};

// Returns the backends that --backend can choose in addition to the simulator.
BackendFactories Backends() {
  BackendFactories backends;
  backends.Add("cpu", CpuFactory());
  return backends;
}

double PeakMemoryMiB() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string Summary(const SweepCounts& counts) {
  return fmt::format("{} ok, {} out of memory, {} failed", counts.ok, counts.oom, counts.failed);
}

// Returns a line for each of the reasons why cells failed, the most frequent first.
std::string FormatFailures(const std::map<std::string, int64_t>& failures) {
  constexpr size_t kShown = 20;
  std::vector<std::pair<std::string, int64_t>> reasons(failures.begin(), failures.end());
  std::ranges::stable_sort(reasons, std::greater(), &std::pair<std::string, int64_t>::second);
  std::string text;
  for (size_t i = 0; i < std::min(kShown, reasons.size()); ++i) {
    text += fmt::format("{} failed: {}\n", reasons[i].second, reasons[i].first);
  }
  if (reasons.size() > kShown) {
    text += fmt::format("{} more reasons are in the column reason of spillway sweep export\n",
                        reasons.size() - kShown);
  }
  return text;
}

struct SweepOptions : SimulatedGrid {
  std::string checkpoint;
};

int Sweep(const SweepOptions& options, Session& session) {
  const Experiment experiment = options.Load();
  const Shard shard = Shard::Parse(options.shard);
  const Grid grid(experiment, AllPolicies("training"));
  grid.Check();
  if (experiment.output.empty()) {
    throw UsageError("no store: give -o STORE, a SQLite file that is made if there is none");
  }
  CheckEnding(experiment.output, {".sqlite"});
  RemarkTraining(experiment, session);
  const std::filesystem::path path = experiment.output;
  if (!options.checkpoint.empty()) Checkpoint::Restore(options.checkpoint, path);
  SweepStore store(path, SweepStore::Open::kCreate);
  std::optional<Checkpoint> checkpoint;
  if (!options.checkpoint.empty()) checkpoint.emplace(store, options.checkpoint);
  const auto start = std::chrono::steady_clock::now();
  const SweepCounts before = CountCells(grid, shard, &store);
  session.interrupts().BeforeEnd([&] {
    session.progress().Wipe();
    store.Commit();
    if (checkpoint) checkpoint->Write();
    session.Remark(fmt::format("{} has {} cells; the same command goes on from there",
                               path.string(), store.Size()));
  });
  const std::string program = fmt::format("spillway {} ({})", SPILLWAY_VERSION, kCommit);
  session.progress().Start(before.cells - before.present);
  SweepProgress progress;
  progress.finished = [&](const Case& cell, const RunResult&) {
    session.progress().Advance(fmt::format("{} {}", WorkloadText(cell), cell.policy.name()));
  };
  std::optional<SweepCounts> counts;
  try {
    counts = RunSweep(grid, shard, store, before, options.jobs, program, progress, Backends());
  } catch (...) {
    session.progress().Wipe();
    session.interrupts().BeforeEnd({});
    throw;
  }
  session.progress().Wipe();
  session.interrupts().BeforeEnd({});
  if (checkpoint) checkpoint->Write();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const uint64_t computed = counts->cells - counts->present;
  session.Remark(fmt::format("{:.1f} s, {:.0f} cells per second, {:.0f} MiB at most", seconds,
                             static_cast<double>(computed) / seconds, PeakMemoryMiB()));
  return session.Finish(
      fmt::format("{}: {} cells, {} computed, {} were there: {}\n{}", path.string(), counts->cells,
                  computed, counts->present, Summary(*counts), FormatFailures(counts->failures)),
      counts->failed > 0 ? kPolicyFailure : kOk);
}

struct Plan : SweepCounts {
  int jobs = 0;
  double seconds = 0;
};

Columns<Plan> PlanColumns() {
  return {
      {"cells", "1", "of the grid, or of its shard", [](auto& plan) { return plan.cells; }},
      {"present", "1", "that the store has", [](auto& plan) { return plan.present; }},
      {"missing", "1", "to be computed", [](auto& plan) { return plan.cells - plan.present; }},
      {"seconds", "s", "that they take about, by runs of a few of them", &Plan::seconds},
  };
}

void AddSweepPlan(Command& sweep, Session& session) {
  struct Options : SimulatedGrid {
    FormatOption format;
  };
  Command& verb = sweep.Add(
      "plan", "Say how many cells a sweep has, how many are there, and about how long it takes");
  verb.examples = {"sweep plan 'vgg16:{16,32,64}' --memory 30%,60%",
                   "sweep plan grid.toml -o sweep.sqlite"};
  auto& options = verb.Keep<Options>();
  options.Add(verb);
  options.format.Add(verb);
  verb.Runs([&options, &session] {
    const Experiment experiment = options.Load();
    const Shard shard = Shard::Parse(options.shard);
    const Grid grid(experiment, AllPolicies("training"));
    grid.Check();
    std::optional<SweepStore> store;
    std::error_code ignored;
    if (!experiment.output.empty() && std::filesystem::exists(experiment.output, ignored)) {
      store.emplace(experiment.output, SweepStore::Open::kExisting);
    }
    const SweepStore* there = store ? &*store : nullptr;
    Plan plan{CountCells(grid, shard, there)};
    plan.seconds = EstimateSweep(grid, plan.cells - plan.present, options.jobs, 3, Backends());
    return session.Finish(
        FormatAs<Plan>(
            options.format.view(), PlanColumns(), std::span(&plan, 1), "spillway.sweep-plan/v1",
            [&] {
              return fmt::format("{} cells: {} are there, {} to compute, about {:.1f} s\n",
                                 plan.cells, plan.present, plan.cells - plan.present, plan.seconds);
            }),
        kOk);
  });
}

Columns<SweepStore::Holding> HoldingColumns() {
  using Holding = SweepStore::Holding;
  return {
      {"policy", "", "as given", &Holding::policy, "policy"},
      {"cells", "1", "that are there", &Holding::cells, "cells"},
      {"ok", "1", "that fit", &Holding::ok, "ok"},
      {"oom", "1", "that do not fit", &Holding::oom, "oom"},
      {"failed", "1", "whose policy broke down", &Holding::failed, "failed"},
      {"failures", "", "how it broke down, each reason with its number of cells: JSON only",
       [](const Holding& holding) {
         using Failure = std::pair<const std::string, int64_t>;
         const Columns<Failure> columns{{"reason", "", "", &Failure::first},
                                        {"cells", "1", "", &Failure::second}};
         return NestRows(columns,
                         std::vector<Failure>(holding.failures.begin(), holding.failures.end()));
       }},
  };
}

void AddStorePath(Command& verb, std::string& path) {
  verb.Text("store", path, "Store of a sweep or of validate, a SQLite file").Required();
}

void AddStatus(Command& sweep, Session& session) {
  struct Options {
    std::string path;
    FormatOption format;
  };
  Command& verb =
      sweep.Add("status", "Count the cells of a store by policy, and failed cells by reason");
  verb.examples = {"sweep status sweep.sqlite", "sweep status sweep.sqlite --format json"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  options.format.Add(verb);
  verb.Runs([&options, &session] {
    const SweepStore store(options.path, SweepStore::Open::kExisting, StoreKindOf(options.path));
    const std::vector<SweepStore::Holding> rows = store.Holdings();
    constexpr std::string_view kShown[] = {"policy", "cells", "ok", "oom", "failed"};
    return session.Finish(
        FormatAs(options.format.view(), HoldingColumns(), rows, "spillway.sweep-status/v1",
                 [&] {
                   std::map<std::string, int64_t> failures;
                   for (const SweepStore::Holding& row : rows) {
                     for (const auto& [reason, count] : row.failures) failures[reason] += count;
                   }
                   return rows.empty() ? std::string("nothing yet\n")
                                       : FormatTable(HoldingColumns(), kShown, rows) +
                                             FormatFailures(failures);
                 }),
        kOk);
  });
}

// Returns the texts between commas; those in brackets separate nothing.
std::vector<std::string> Parts(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    parts.emplace_back(text.substr(0, FindComma(text)));
    text.remove_prefix(std::min(text.size(), parts.back().size() + 1));
  }
  return parts;
}

// Keeps the rows that have one of the values of each condition, "COLUMN=VALUE,...". Throws
// `UsageError` if there is no such column, or no row with the value.
void KeepWhere(const std::vector<std::string>& conditions, const Columns<ResultRow>& columns,
               std::vector<ResultRow>& rows) {
  for (const std::string& condition : conditions) {
    const size_t equals = condition.find('=');
    if (equals == condition.npos) {
      throw UsageError(fmt::format("where: '{}' is not COLUMN=VALUE,...", condition));
    }
    const std::string name = condition.substr(0, equals), values = condition.substr(equals + 1);
    std::vector<std::string> names;
    for (const Column<ResultRow>& one : columns) {
      if (one.type != "array") names.push_back(one.name);
    }
    const auto column = std::ranges::find(columns, name, &Column<ResultRow>::name);
    if (std::ranges::count(names, name) == 0) {
      throw UsageError("where: " + UnknownName("column", name, names));
    }
    const auto text_of = [&](const ResultRow& row) {
      const Value value = column->get(row);
      if (const auto* const own = std::get_if<std::string>(&value)) return *own;
      std::string text;
      AppendCsv(text, value);
      return text;
    };
    std::set<std::string> there;
    for (const ResultRow& row : rows) there.insert(text_of(row));
    const std::vector<std::string> wanted =
        there.contains(values) ? std::vector{values} : Parts(values);
    for (const std::string& value : wanted) {
      if (!there.contains(value)) {
        throw UsageError("where: " + UnknownName(name, value, {there.begin(), there.end()}));
      }
    }
    std::erase_if(
        rows, [&](const ResultRow& row) { return std::ranges::count(wanted, text_of(row)) == 0; });
  }
}

void AddExport(Command& sweep, Session& session) {
  struct Options {
    std::string path, output;
    std::vector<std::string> where;
    FormatOption format;
  };
  Command& verb = sweep.Add(
      "export",
      "Write the results of a store, with the columns of compare, or validate; the same cells give "
      "the same bytes, however they were computed");
  verb.examples = {"sweep export sweep.sqlite -o sweep.csv",
                   "sweep export sweep.sqlite --where policy=vdnnpp,dtr --where status=ok"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  verb.Texts("--where", options.where,
             "Only the rows with this value, or one of these values, of a column: "
             "COLUMN=VALUE[,VALUE...], as CSV has it; repeat for more columns")
      .OneEach()
      .Verbatim();
  options.format.Add(verb);
  options.format.AddPivot(verb);
  AddOutput(verb, options.output, options.format);
  verb.Runs([&options, &session] {
    const StoreKind& kind = StoreKindOf(options.path);
    const SweepStore store(options.path, SweepStore::Open::kExisting, kind);
    std::vector<ResultRow> rows;
    for (SweepStore::Entry& entry : store.Read()) rows.push_back(std::move(entry.row));
    KeepWhere(options.where, kind.columns, rows);
    return session.Finish(
        FormatRows(kind, rows, options.format), options.output, {}, kOk,
        [&](Manifest& manifest) { manifest.AddInput("store", "file", options.path); });
  });
}

void AddMerge(Command& sweep) {
  struct Options {
    std::string path;
    std::vector<std::string> others;
  };
  Command& verb = sweep.Add(
      "merge", "Add the cells of other stores to a store, which is made if there is none");
  verb.examples = {"sweep merge all.sqlite sweep.sqlite",
                   "sweep merge all.sqlite sweep.sqlite other.sqlite"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  verb.Texts("others", options.others, "Stores to read, one or more").Required();
  verb.Runs([&options] {
    const StoreKind& kind = StoreKindOf(options.others.front());
    for (const std::string& other : options.others) {
      std::error_code ignored;
      if (std::filesystem::equivalent(other, options.path, ignored)) {
        throw UsageError(fmt::format("'{}' is merged into itself", other));
      }
      SweepStore(other, SweepStore::Open::kExisting, kind);  // fails before any change
    }
    SweepStore store(options.path, SweepStore::Open::kCreate, kind);
    for (const std::string& other : options.others) {
      const int64_t added = store.Merge(other);
      fmt::print("{}: {} cells are new\n", other, added);
    }
    return kOk;
  });
}

void AddSubmit(Command& sweep, Session& session) {
  struct Options : SimulatedGrid {
    SlurmJob job;
    std::string directory;
    bool slurm = false, dry_run = false;
  };
  Command& verb = sweep.Add(
      "submit",
      "Run a sweep on a cluster: an array job, a shard for each task, and a job that merges them");
  verb.examples = {"sweep submit grid.toml -o s.sqlite --slurm --tasks 4",
                   "sweep submit grid.toml -o s.sqlite --slurm --tasks 4 --dry-run"};
  auto& options = verb.Keep<Options>();
  options.Add(verb);
  verb.Remove("--shard");
  verb.Remove("--jobs");
  SlurmJob& job = options.job;
  verb.Flag("--slurm", options.slurm, "With Slurm's sbatch").Required();
  verb.Number("--tasks", job.tasks, {1, 100'000}, "Tasks of the array, a shard each").Required();
  verb.Number("--cpus", job.cpus, {1, 1024}, "Processors, and threads, of a task");
  verb.Text("--time", job.time, "Limit of a task, as sbatch takes it");
  verb.Text("--mem", job.memory, "Memory of a task, as sbatch takes it");
  verb.Texts("--slurm-option", job.options,
             "Another option of sbatch (--slurm-option=--partition=long); repeat for more")
      .OneEach()
      .Verbatim();
  verb.Text("--directory", options.directory,
            "Shared directory of scripts, logs and shards (default: STORE.shards)");
  verb.Flag("--dry-run", options.dry_run, "Print the scripts, submit nothing");
  verb.Runs([&options, &session] {
    const Experiment experiment = options.Load();
    const Grid grid(experiment, AllPolicies("training"));
    grid.Check();
    if (experiment.output.empty()) throw UsageError("no store: give -o STORE");
    CheckEnding(experiment.output, {".sqlite"});
    SlurmJob prepared = options.job;
    prepared.program = std::filesystem::read_symlink("/proc/self/exe");
    prepared.work = std::filesystem::current_path();
    prepared.store = std::filesystem::absolute(experiment.output);
    prepared.directory = options.directory.empty()
                             ? prepared.store.string() + ".shards"
                             : std::filesystem::absolute(options.directory).string();
    if (options.dry_run) {
      return session.Finish(ArrayScript(prepared, experiment) + "\n" + MergeScript(prepared), kOk);
    }
    const SubmittedJobs jobs = Submit(prepared, experiment);
    return session.Finish(
        fmt::format("{} cells in {} tasks: job {}, then job {} merges them into {}\n", grid.size(),
                    prepared.tasks, jobs.array, jobs.merge, prepared.store.string()),
        kOk);
  });
}

}  // namespace

void AddSweep(Command& program, Session& session) {
  Command& verb = program.Add(
      "sweep",
      "Simulate every cell of a grid into a store; cells in the store are not computed again. "
      "Exit code 4 if a policy failed, which affects only its own cells");
  verb.examples = {"sweep 'vgg16:{16,32,64}' --memory 30%,60% -o sweep.sqlite",
                   "sweep grid.toml -o sweep.sqlite"};
  auto& options = verb.Runs(Sweep, session);
  options.Add(verb);
  verb.File(
      "--checkpoint", options.checkpoint,
      "Copy the store here every minute, at the end and when interrupted, whole or not at all; "
      "a missing store begins with this copy");
  AddSweepPlan(verb, session);
  AddStatus(verb, session);
  AddExport(verb, session);
  AddMerge(verb);
  AddSubmit(verb, session);
}

}  // namespace spillway::cli
