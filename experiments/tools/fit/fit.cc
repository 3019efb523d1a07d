#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <utility>

#include "experiments/run/inputs.h"
#include "experiments/tools/fit/first_iterations.h"
#include "experiments/tools/fit/pytorch_remedies.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/blocks.h"

namespace spillway {
namespace {

constexpr const char* kAllocators[] = {"pytorch", "pytorch:expandable_segments=true"};
constexpr size_t kExpandable = 1;  // an index into `kAllocators`
// The optimizer allocates its state in the first iteration. After two more iterations the placement
// of blocks no longer changes.
constexpr int kFirstIterations = 3;

// Returns the policy that runs the workload unchanged.
std::string PolicyOf(const Trace& trace) { return trace.recording ? "as-recorded" : "liveness"; }

// A `Question` runs one workload on one device under each allocator in `kAllocators`.
class Question {
 public:
  Question(const FitWorkload& workload, const std::string& device, const FitOptions& options) {
    asked_ = workload.asked;
    asked_.workload = workload.name;
    // A process of its own would load the trace that was given.
    asked_.in_process = asked_.in_process || workload.trace != workload.given;
    asked_.device = device;
    for (const char* allocator : kAllocators) {
      asked_.allocator = allocator;
      inputs_.push_back(std::make_unique<const Inputs>(asked_, workload.trace));
    }
    const Trace& trace = *workload.trace;
    row_.workload = workload.name;
    row_.network = trace.network;
    row_.batch = trace.batch;
    row_.batch_source = workload.batch_source;
    row_.arithmetic = inputs_[0]->cost()->ArithmeticFor(trace);
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
    row.status = result.fits()            ? FitStatus::kFits
                 : result.failure.empty() ? FitStatus::kNot
                                          : FitStatus::kFailed;
    if (!result.fits()) row.reason = result.Reason();
    return row;
  }

  // Returns the result of a run in the available memory, with the metrics of a run in unlimited
  // memory, and its memory peak.
  FitRow Predict(const std::string& change, const PolicyChoice& policy, size_t allocator) const {
    FitRow row = Try(change, policy, allocator);
    std::shared_ptr<const Trace> ran;
    const RunResult unlimited = RunIn("unlimited", policy, allocator, [&](const Outcome& outcome) {
      ran = outcome.trace;
      row.peak = FindPeak(*outcome.trace, outcome.report);
    });
    if (!unlimited.fits()) throw PolicyError(unlimited.Reason());
    row.metrics = unlimited.report.metrics;
    if (ran->recording) BeginAsRecorded(*ran, allocator, row);
    if (row.status == FitStatus::kFits && row.metrics.peak_reserved > row.available()) {
      row.status = FitStatus::kReclaims;
    }
    return row;
  }

  FitRow AsItIs() const { return Predict("none", PolicyOf(*inputs_[0]->trace()), 0); }

  // Returns the result of a change in PyTorch. Expandable segments are used, too, if the workload
  // fits with them only.
  FitRow Remedied(const PyTorchRemedy& remedy) const {
    const PolicyChoice policy =
        remedy.policy.empty() ? PolicyOf(*inputs_[0]->trace()) : remedy.policy;
    const bool expands = remedy.change == ExpandableSegments().change;
    FitRow row = Predict(remedy.change, policy, expands ? kExpandable : 0);
    row.remedy = remedy.text;
    row.python = remedy.python;
    row.peak = {};
    if (expands || row.status != FitStatus::kNot) return row;
    FitRow other = Predict(remedy.change, policy, kExpandable);
    if (other.status == FitStatus::kNot) return row;
    const PyTorchRemedy expandable = ExpandableSegments();
    other.peak = {};
    other.remedy = fmt::format("{}, {}", remedy.text, expandable.text);
    other.python = fmt::format("{}\n{}", remedy.python, expandable.python);
    return other;
  }

 private:
  // Raises the peak of reserved memory of `row` to that of the first iterations, which reserve more
  // than later ones, and sets its status if they do not fit. `trace` is the trace that ran.
  void BeginAsRecorded(const Trace& trace, size_t allocator_index, FitRow& row) const {
    const AllocationLog log = RequestsOfFirst(trace, kFirstIterations);
    const auto replay = [&](Bytes capacity, Bytes& reserved) {
      const auto allocator =
          MakeAllocator(kAllocators[allocator_index], capacity, inputs_[0]->device().alignment);
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

// Returns the least number in [begin, end) for which `holds`, or `end` if there is none. If it
// holds for a number, it should hold for all larger numbers: else the result is not the least.
size_t LeastThat(size_t begin, size_t end, const std::function<bool(size_t)>& holds) {
  while (begin < end) {
    const size_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Returns the results of checkpoints around all blocks, and around as few of the first blocks as
// make it fit. REQUIRES: `blocks` is not empty.
std::vector<FitRow> Checkpointed(const Question& one, const std::vector<std::string>& blocks) {
  const auto row_of = [&](size_t count) { return one.Remedied(Checkpoint(blocks, count)); };
  std::vector<FitRow> rows{row_of(blocks.size())};
  if (rows[0].status == FitStatus::kNot) return rows;
  const size_t count = LeastThat(
      1, blocks.size(), [&](size_t some) { return row_of(some).status != FitStatus::kNot; });
  if (count < blocks.size()) rows.push_back(row_of(count));
  return rows;
}

// Returns the result of the largest batch that fits and is smaller than that of the workload, or
// of batch 1 if none fits; nothing for batch 1.
std::vector<FitRow> WithSmallerBatch(const FitWorkload& workload,
                                     const std::vector<FitWorkload>& all, const std::string& device,
                                     const FitOptions& options) {
  const int64_t batch = workload.trace->batch;
  if (batch == 1) return {};
  std::vector<std::shared_ptr<const Trace>> others;
  for (const FitWorkload& other : all) others.push_back(other.given);
  const auto row_of = [&](int64_t smaller) {
    const BatchTrace at = AtBatch(workload.given, others, smaller);
    return Question({workload.name, at.trace, at.source, workload.given, workload.asked}, device,
                    options)
        .Remedied(SmallerBatch(smaller, at.source));
  };
  const auto less = LeastThat(1, static_cast<size_t>(batch) - 1, [&](size_t samples_less) {
    return row_of(batch - static_cast<int64_t>(samples_less)).status != FitStatus::kNot;
  });
  return {row_of(batch - static_cast<int64_t>(less))};
}

// Returns the result of a policy of research; nothing if the workload does not fit with it.
std::vector<FitRow> WithPolicy(const Question& one, const PolicyChoice& policy) {
  FitRow row = one.Try("policy", policy, 0);
  if (row.status == FitStatus::kNot) row = one.Try("policy and allocator", policy, kExpandable);
  if (row.status == FitStatus::kNot) return {};
  return {row};
}

void FindChanges(const Question& one, const FitWorkload& workload,
                 const std::vector<FitWorkload>& all, const std::string& device,
                 const FitOptions& options, Fit& fit) {
  const Trace& trace = *workload.trace;
  std::vector<std::function<std::vector<FitRow>()>> tries;
  tries.emplace_back([&] { return std::vector{one.Remedied(ExpandableSegments())}; });
  tries.emplace_back([&] { return WithSmallerBatch(workload, all, device, options); });
  const std::vector<std::string> blocks = BlocksInOrder(trace);
  if (!trace.recording) {
    fit.not_tried.emplace_back(
        "Checkpoints and save_on_cpu are predicted for steps that were recorded from PyTorch: see "
        "spillway trace import.");
  } else if (trace.training) {
    tries.emplace_back([&] { return std::vector{one.Remedied(SaveTensorsOnCpu())}; });
    if (!blocks.empty()) {
      tries.emplace_back([&] { return Checkpointed(one, blocks); });
      tries.emplace_back(
          [&] { return std::vector{one.Remedied(SelectiveCheckpoint(blocks, trace))}; });
    } else {
      fit.not_tried.emplace_back(
          "Checkpoints were not tried: the recording does not name the model's blocks. Record it "
          "with model=..., see scripts/record_pytorch.py.");
    }
  }
  for (const PolicyChoice& policy : options.policies) {
    if (policy.name() == fit.as_it_is.policy) continue;
    tries.emplace_back([&] { return WithPolicy(one, policy); });
  }
  std::vector<std::vector<FitRow>> found(tries.size());
  std::vector<std::string> failures(tries.size());
  tbb::parallel_for(size_t{0}, tries.size(), [&](size_t i) {
    try {
      found[i] = tries[i]();
    } catch (const PolicyError& error) {
      failures[i] = fmt::format("A change could not be predicted: {}.", error.what());
    }
  });
  for (std::string& failure : failures) {
    if (!failure.empty()) fit.not_tried.push_back(std::move(failure));
  }
  for (std::vector<FitRow>& rows : found) {
    for (FitRow& row : rows) {
      const bool helps = row.metrics.peak_reserved < fit.as_it_is.metrics.peak_reserved;
      if (row.status == FitStatus::kFailed) {
        fit.failures.push_back(std::move(row));
      } else if (row.status != FitStatus::kNot) {
        fit.changes.push_back(std::move(row));
      } else if (helps) {
        fit.misses.push_back(std::move(row));
      }
    }
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
      fits[i].as_it_is = one.AsItIs();
      if (fits[i].as_it_is.status != FitStatus::kNot) continue;
      FindChanges(one, workloads[i], workloads, device, options, fits[i]);
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
      const PyTorchRemedy remedy = SmallerBatch(row.batch, row.batch_source);
      fit.changes.push_back(row);
      fit.changes.back().change = remedy.change;
      fit.changes.back().remedy = remedy.text;
      fit.changes.back().python = remedy.python;
    }
    for (auto* rows : {&fit.changes, &fit.misses}) {
      for (FitRow& row : *rows) row.slowdown = TimePerSample(row) / TimePerSample(fit.as_it_is);
    }
    std::ranges::stable_sort(fit.changes, {}, &FitRow::slowdown);
  }
  return fits;
}

std::vector<FitRow> RowsOf(const std::vector<Fit>& fits) {
  std::vector<FitRow> rows;
  for (const Fit& fit : fits) {
    rows.push_back(fit.as_it_is);
    rows.insert(rows.end(), fit.changes.begin(), fit.changes.end());
    rows.insert(rows.end(), fit.misses.begin(), fit.misses.end());
    rows.insert(rows.end(), fit.failures.begin(), fit.failures.end());
  }
  return rows;
}

}  // namespace spillway
