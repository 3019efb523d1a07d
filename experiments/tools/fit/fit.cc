#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <set>
#include <utility>

#include "experiments/run/inputs.h"
#include "experiments/tools/fit/first_iterations.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

constexpr const char* kAllocators[] = {"pytorch", "pytorch:expandable_segments=true"};
// The number of changes that the table of a workload shows.
constexpr size_t kShownChanges = 8;
constexpr size_t kShownHolders = 5;
// The optimizer allocates its state in the first iteration. After two more iterations the placement
// of blocks no longer changes.
constexpr int kFirstIterations = 3;

std::string_view Name(FitStatus status) {
  constexpr std::string_view kNames[] = {"fits", "reclaims", "no"};
  return kNames[static_cast<size_t>(status)];
}

// Returns the policy that runs the workload unchanged.
std::string PolicyOf(const Trace& trace) { return trace.recording ? "as-recorded" : "liveness"; }

// A `Question` runs one workload on one device under each allocator in `kAllocators`.
class Question {
 public:
  Question(const FitWorkload& workload, const std::string& device, const FitOptions& options) {
    asked_.workload = workload.name;
    asked_.device = device;
    for (const char* allocator : kAllocators) {
      asked_.allocator = allocator;
      inputs_.push_back(std::make_unique<const Inputs>(asked_, workload.trace));
    }
    const Trace& trace = *workload.trace;
    row_.workload = workload.name;
    row_.network = trace.network;
    row_.batch = trace.batch;
    if (trace.recording) row_.recorded_reserved = trace.recording->reserved;
    row_.device = inputs_[0]->device().name;
    row_.memory = inputs_[0]->device().memory;
    row_.outside = options.outside;
    if (row_.outside >= row_.memory) {
      throw UsageError(fmt::format("outside: {} leaves nothing of the {} of memory of '{}'",
                                   FormatBytes(row_.outside), FormatBytes(row_.memory), device));
    }
  }

  // Returns the result of a run in the available memory. `allocator` is an index into
  // `kAllocators`.
  FitRow Try(const std::string& change, const PolicyChoice& policy, size_t allocator) const {
    const RunResult result =
        RunIn(fmt::format("{}B", row_.available().count()), policy, allocator, {});
    FitRow row = row_;
    row.change = change;
    row.policy = policy.name();
    row.allocator = kAllocators[allocator];
    row.metrics = result.report.metrics;
    row.status = result.fits() ? FitStatus::kFits : FitStatus::kNot;
    if (!result.fits()) row.reason = result.Reason();
    return row;
  }

  Fit AsItIs() const {
    const Trace& trace = *inputs_[0]->trace();
    const PolicyChoice policy = PolicyOf(trace);
    Fit fit{Try("none", policy, 0), {}, {}};
    FitRow& row = fit.as_it_is;
    const RunResult unlimited = RunIn("unlimited", policy, 0, [&](const Outcome& outcome) {
      fit.peak = FindPeak(*outcome.trace, outcome.report);
    });
    if (!unlimited.fits()) throw PolicyError(unlimited.Reason());
    row.metrics = unlimited.report.metrics;
    if (trace.recording) BeginAsRecorded(row);
    if (row.status == FitStatus::kFits && row.metrics.peak_reserved > row.available()) {
      row.status = FitStatus::kReclaims;
    }
    return fit;
  }

 private:
  // Raises the peak of reserved memory of `row` to that of the first iterations, which reserve more
  // than later ones, and sets its status if they do not fit.
  void BeginAsRecorded(FitRow& row) const {
    const AllocationLog log = RequestsOfFirst(*inputs_[0]->trace(), kFirstIterations);
    const auto replay = [&](Bytes capacity, Bytes& reserved) {
      const auto allocator =
          MakeAllocator(kAllocators[0], capacity, inputs_[0]->device().alignment);
      const auto failure = Replay(log, *allocator);
      reserved = allocator->Stats().reserved;
      return failure;
    };
    Bytes reserved;
    replay(Bytes::Unlimited(), reserved);
    row.metrics.peak_reserved = std::max(row.metrics.peak_reserved, reserved);
    if (row.status == FitStatus::kNot) return;
    if (const auto failure = replay(row.available(), reserved)) {
      row.status = FitStatus::kNot;
      row.reason = fmt::format(
          "in its first {} iterations a request of {} finds no block: {} of {} are taken",
          kFirstIterations, FormatBytes(failure->wanted), FormatBytes(reserved),
          FormatBytes(row.available()));
    }
  }

  RunResult RunIn(const std::string& memory, const PolicyChoice& policy, size_t allocator,
                  const std::function<void(const Outcome&)>& look) const {
    Case asked = asked_;
    asked.allocator = kAllocators[allocator];
    asked.memory = memory;
    asked.policy = policy;
    return RunForRow(asked, *inputs_[allocator], look, Certificate::kNone);
  }

  Case asked_;
  std::vector<std::unique_ptr<const Inputs>> inputs_;  // by allocator
  FitRow row_;
};

double TimePerSample(const FitRow& row) {
  return row.metrics.iteration.milliseconds() / static_cast<double>(row.batch);
}

void FindChanges(const Question& one, const FitOptions& options, Fit& fit) {
  const std::string& as_it_is = fit.as_it_is.policy;
  std::vector<PolicyChoice> policies{as_it_is};
  for (const PolicyChoice& policy : options.policies) {
    if (policy.name() != as_it_is) policies.push_back(policy);
  }
  std::vector<FitRow> found(policies.size());
  tbb::parallel_for(size_t{0}, policies.size(), [&](size_t i) {
    const bool same = policies[i].name() == as_it_is;
    if (!same) found[i] = one.Try("policy", policies[i], 0);
    if (found[i].status == FitStatus::kFits) return;
    found[i] = one.Try(same ? "allocator" : "policy and allocator", policies[i], 1);
  });
  for (FitRow& row : found) {
    if (row.status == FitStatus::kFits) fit.changes.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Fit> FindFits(const std::vector<FitWorkload>& workloads, const std::string& device,
                          const FitOptions& options,
                          const std::function<void(const std::string& what)>& progress) {
  std::vector<Fit> fits(workloads.size());
  tbb::task_arena arena(options.jobs > 0 ? options.jobs : tbb::task_arena::automatic);
  arena.execute([&] {
    for (size_t i = 0; i < workloads.size(); ++i) {
      progress(fmt::format("{} on {}", workloads[i].name, device));
      const Question one(workloads[i], device, options);
      fits[i] = one.AsItIs();
      if (fits[i].as_it_is.status == FitStatus::kNot) FindChanges(one, options, fits[i]);
    }
  });
  for (Fit& fit : fits) {
    if (fit.as_it_is.status != FitStatus::kNot) continue;
    for (const Fit& other : fits) {
      const FitRow& row = other.as_it_is;
      if (row.network != fit.as_it_is.network || row.batch >= fit.as_it_is.batch ||
          row.status == FitStatus::kNot) {
        continue;
      }
      fit.changes.push_back(row);
      fit.changes.back().change = "batch";
    }
    for (FitRow& row : fit.changes) row.slowdown = TimePerSample(row) / TimePerSample(fit.as_it_is);
    std::ranges::stable_sort(fit.changes, {}, &FitRow::slowdown);
  }
  return fits;
}

std::vector<FitRow> RowsOf(const std::vector<Fit>& fits) {
  std::vector<FitRow> rows;
  for (const Fit& fit : fits) {
    rows.push_back(fit.as_it_is);
    rows.insert(rows.end(), fit.changes.begin(), fit.changes.end());
  }
  return rows;
}

Columns<FitRow> FitColumns() {
  const auto metric = [](auto member) {
    return [member](const FitRow& row) { return row.metrics.*member; };
  };
  return {
      {"workload", "", "as given", &FitRow::workload, "workload"},
      {"network", "", "of it", &FitRow::network},
      {"batch", "1", "samples per iteration", &FitRow::batch, "batch"},
      {"device", "", "name of the GPU", &FitRow::device, "device"},
      {"memory_bytes", "B", "device memory", &FitRow::memory, "memory GiB", 2},
      {"outside_bytes", "B", "of that, held beside the allocator", &FitRow::outside, "outside GiB",
       2},
      {"change", "",
       "none, or what was changed to make it fit: allocator, policy, policy and allocator, batch",
       &FitRow::change, "change"},
      {"policy", "", "that it runs under", &FitRow::policy, "policy"},
      {"allocator", "", "that serves it", &FitRow::allocator, "allocator"},
      {"status", "", "fits, reclaims (only where the allocator gives cached memory back) or no",
       [](auto& row) { return Name(row.status); }, "fits"},
      {"peak_requested_bytes", "B",
       "most bytes asked for at once; of change none, as are all "
       "peaks and times of it, with unlimited memory",
       metric(&Metrics::peak_requested), "requested GiB", 3},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once",
       metric(&Metrics::peak_allocated), "allocated GiB", 3},
      {"peak_reserved_bytes", "B", "most bytes taken from the device",
       metric(&Metrics::peak_reserved), "reserved GiB", 3},
      {"recorded_reserved_bytes", "B",
       "most that PyTorch took from the device where it was recorded, first iterations included",
       [](auto& row) {
         return row.recorded_reserved > Bytes(0) ? std::optional(row.recorded_reserved)
                                                 : std::nullopt;
       },
       "recorded GiB", 3},
      {"margin_bytes", "B", "what is left of the memory beside both; negative if it is short",
       [](auto& row) { return row.available().count() - row.metrics.peak_reserved.count(); },
       "margin GiB", 3},
      {"iteration_ms", "ms", "predicted", metric(&Metrics::iteration), "time ms", 1},
      {"slowdown", "1", "time per sample over change none", &FitRow::slowdown, "slowdown", 3},
      {"reason", "", "why it does not fit", [](auto& row) { return IfAny(row.reason); }},
  };
}

std::string FormatFits(const std::vector<Fit>& fits, size_t width) {
  constexpr std::string_view kVerdict[] = {"workload",
                                           "device",
                                           "memory_bytes",
                                           "outside_bytes",
                                           "peak_requested_bytes",
                                           "peak_allocated_bytes",
                                           "peak_reserved_bytes",
                                           "recorded_reserved_bytes",
                                           "margin_bytes",
                                           "status",
                                           "iteration_ms"};
  constexpr std::string_view kChange[] = {"change",       "workload",     "policy",  "allocator",
                                          "margin_bytes", "iteration_ms", "slowdown"};
  std::vector<FitRow> verdicts;
  for (const Fit& fit : fits) verdicts.push_back(fit.as_it_is);
  std::string text = FormatTable(FitColumns(), kVerdict, verdicts, width);
  for (const Fit& fit : fits) {
    const FitRow& row = fit.as_it_is;
    if (row.status != FitStatus::kNot) continue;
    text += fmt::format("\n{} does not fit on {}: {}\n", row.workload, row.device, row.reason);
    if (fit.changes.empty()) {
      text += "Nothing that was tried makes it fit.\n";
      continue;
    }
    const size_t shown = std::min(kShownChanges, fit.changes.size());
    text += fmt::format("What makes it fit, the cheapest first{}:\n\n",
                        shown < fit.changes.size()
                            ? fmt::format(" ({} of {})", shown, fit.changes.size())
                            : std::string());
    text += FormatTable(FitColumns(), kChange, std::span(fit.changes).first(shown), width);
  }
  std::set<std::string_view> told;  // workloads; the peak is the same on all devices
  for (const Fit& fit : fits) {
    const std::string& workload = fit.as_it_is.workload;
    if (!told.insert(workload).second) continue;
    text += fmt::format("\n{}, as it is. {}", workload, FormatPeak(fit.peak, kShownHolders));
  }
  return text;
}

}  // namespace spillway
