#include "experiments/tools/fit/fit.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <set>
#include <string_view>
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
// The number of policies of research that the table of a workload shows.
constexpr size_t kShownPolicies = 8;
constexpr size_t kShownHolders = 5;
constexpr size_t kWrittenHolders = 20;  // in JSON
constexpr size_t kTextWidth = 80;       // of sentences
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
    row_.batch_source = workload.batch_source;
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

// Returns the least number below `end` for which `holds`, or `end` if there is none. If it holds
// for a number, it has to hold for all larger numbers.
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
// make it fit.
std::vector<FitRow> Checkpointed(const Question& one, const std::vector<std::string>& blocks) {
  if (blocks.empty()) return {};
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
    return Question({workload.name, at.trace, at.source, workload.given}, device, options)
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
      if (row.status != FitStatus::kNot) {
        fit.changes.push_back(std::move(row));
      } else if (helps) {
        fit.misses.push_back(std::move(row));
      }
    }
  }
}

// Returns the name of the file, if the workload is the path of one.
std::string_view ShortName(std::string_view workload) {
  return workload.substr(workload.rfind('/') + 1);
}

// Returns the text in lines of at most `kTextWidth` characters, unless a word is longer. Lines
// after the first begin with `indent` spaces.
std::string Wrapped(std::string_view text, size_t indent = 0) {
  std::string wrapped;
  size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > 0 && column + 1 + word.size() > kTextWidth) {
      wrapped += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped + "\n";
}

// Returns lines of Python of at most `kTextWidth` characters. A longer line is broken behind the
// head of its loop, and behind commas, which are all in brackets.
std::string FormatPython(std::string_view python) {
  std::string text;
  while (!python.empty()) {
    std::string_view line = python.substr(0, python.find('\n'));
    python.remove_prefix(std::min(python.size(), line.size() + 1));
    std::string indent(4, ' ');
    while (indent.size() + line.size() > kTextWidth) {
      size_t end = line.starts_with("for ") ? line.find(": ") : line.npos;
      if (end == line.npos) end = line.rfind(", ", kTextWidth - indent.size() - 1);
      if (end == line.npos) break;
      text += fmt::format("{}{}\n", indent, line.substr(0, end + 1));
      line.remove_prefix(end + 2);
      indent.resize(indent.size() < 5 ? 5 : 9, ' ');
    }
    text += fmt::format("{}{}\n", indent, line);
  }
  return text;
}

// Returns a table of changes in PyTorch, with the code of each below its row. The code tells if
// a change goes with expandable segments.
std::string FormatRemedies(std::vector<FitRow> rows) {
  constexpr std::string_view kColumns[] = {
      "remedy",       "peak_allocated_bytes", "peak_reserved_bytes",
      "margin_bytes", "iteration_ms",         "slowdown"};
  for (FitRow& row : rows) row.remedy.resize(std::min(row.remedy.size(), row.remedy.find(',')));
  const std::string table = FormatTable(FitColumns(), kColumns, rows);
  std::string text;
  size_t line = 0;  // of the table, whose first line is the header
  for (size_t begin = 0, end = 0; begin < table.size(); begin = end, ++line) {
    end = table.find('\n', begin) + 1;
    text += table.substr(begin, end - begin);
    if (line > 0) text += FormatPython(rows[line - 1].python);
  }
  return text;
}

// Returns sentences that explain the code and the numbers of the changes.
std::string FormatRemarks(std::span<const FitRow> rows) {
  const auto any = [&](const auto& holds) { return std::ranges::any_of(rows, holds); };
  std::string text;
  if (any([](const FitRow& row) { return row.change.ends_with("checkpoint"); })) {
    text += Wrapped(
        "Here model is your module; checkpoint and create_selective_checkpoint_contexts are in "
        "torch.utils.checkpoint. Times hold if the host keeps up with the GPU.");
  }
  if (any([](const FitRow& row) { return row.batch_source == BatchSource::kScaled; })) {
    text += Wrapped(
        "A scaled batch is an estimate from one recording. Give a second recording of another "
        "batch to interpolate.");
  }
  if (any([](const FitRow& row) { return row.status == FitStatus::kReclaims; })) {
    text += Wrapped(
        "A change with a negative margin fits because the allocator gives cached memory back.");
  }
  return text;
}

// Returns the changes in PyTorch with which the workload does not fit, and those that were not
// tried.
std::string FormatMisses(const Fit& fit) {
  std::string text;
  for (const FitRow& row : fit.misses) {
    const Bytes missing = row.metrics.peak_reserved - row.available();
    text += Wrapped(fmt::format(
        "It does not fit with {}, which reserves {}{}.", row.remedy,
        FormatBytes(row.metrics.peak_reserved),
        missing > Bytes() ? fmt::format(", {} too much", FormatBytes(missing)) : std::string()));
  }
  for (const std::string& sentence : fit.not_tried) text += Wrapped(sentence);
  return text;
}

// Returns a text on the changes of one workload that does not fit.
std::string FormatChanges(const Fit& fit, size_t width) {
  constexpr std::string_view kPolicy[] = {
      "policy", "peak_reserved_bytes", "margin_bytes", "iteration_ms", "slowdown", "allocator"};
  const FitRow& row = fit.as_it_is;
  std::string text =
      fmt::format("\n{}\n", Wrapped(fmt::format("{} does not fit on {}: {}.",
                                                ShortName(row.workload), row.device, row.reason)));
  std::vector<FitRow> remedies, policies;
  for (const FitRow& change : fit.changes) {
    (change.runs_in_pytorch() ? remedies : policies).push_back(change);
  }
  if (!remedies.empty()) {
    text += fmt::format("What makes it fit in PyTorch, the cheapest first:\n\n{}\n{}",
                        FormatRemedies(remedies), FormatRemarks(remedies));
  }
  text += FormatMisses(fit);
  const size_t shown = std::min(kShownPolicies, policies.size());
  if (shown > 0) {
    text += fmt::format(
        "\nPolicies of research that make it fit; your PyTorch does not run them{}:\n\n",
        shown < policies.size() ? fmt::format(" ({} of {})", shown, policies.size())
                                : std::string());
    text += FormatTable(FitColumns(), kPolicy, std::span(policies).first(shown), width);
  }
  if (fit.changes.empty()) text += "Nothing that was tried makes it fit.\n";
  return text;
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
  }
  return rows;
}

Columns<FitRow> FitColumns() {
  const auto metric = [](auto member) {
    return [member](const FitRow& row) { return row.metrics.*member; };
  };
  Columns<FitRow> columns = {
      {"workload", "", "as given", &FitRow::workload, "workload"},
      {"network", "", "of it", &FitRow::network},
      {"batch", "1", "samples per iteration", &FitRow::batch, "batch"},
      {"device", "", "name of the GPU", &FitRow::device, "device"},
      {"memory_bytes", "B", "device memory", &FitRow::memory, "memory", 2},
      {"outside_bytes", "B", "of that, held beside the allocator", &FitRow::outside, "outside", 2},
      {"change", "",
       "none, or the change: allocator, checkpoint, selective checkpoint, save_on_cpu, batch, or "
       "of "
       "policies of research policy, policy and allocator",
       &FitRow::change, "change"},
      {"policy", "", "that it runs under", &FitRow::policy, "policy"},
      {"allocator", "", "that serves it", &FitRow::allocator, "allocator"},
      {"status", "", "fits, reclaims (only where the allocator gives cached memory back) or no",
       [](auto& row) { return Name(row.status); }, "fits"},
      {"peak_requested_bytes", "B",
       "most bytes asked for at once; of change none, as are all "
       "peaks and times of it, with unlimited memory",
       metric(&Metrics::peak_requested), "requested", 3},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once",
       metric(&Metrics::peak_allocated), "allocated", 3},
      {"peak_reserved_bytes", "B", "most bytes taken from the device",
       metric(&Metrics::peak_reserved), "reserved", 3},
      {"recorded_reserved_bytes", "B",
       "most that PyTorch took from the device where it was recorded, first iterations included",
       [](auto& row) {
         return row.recorded_reserved > Bytes(0) ? std::optional(row.recorded_reserved)
                                                 : std::nullopt;
       },
       "recorded", 3},
      {"margin_bytes", "B", "what is left of the memory beside both; negative if it is short",
       [](auto& row) { return row.available().count() - row.metrics.peak_reserved.count(); },
       "margin", 3},
      {"iteration_ms", "ms", "predicted", metric(&Metrics::iteration), "time ms", 1},
      {"slowdown", "1", "time per sample over change none", &FitRow::slowdown, "slowdown", 3},
      {"reason", "", "why it does not fit", [](auto& row) { return IfAny(row.reason); }},
      {"batch_source", "",
       "how the trace of the batch was made: given, lowered, interpolated between two recordings, "
       "or scaled from one",
       [](auto& row) { return Name(row.batch_source); }},
      {"remedy", "", "the change in words, if a user of PyTorch can make it",
       [](auto& row) { return IfAny(row.remedy); }, "change"},
      {"python", "", "its code", [](auto& row) { return IfAny(row.python); }},
      {"peak_blocks", "", "who holds the memory at the peak, by block",
       [](auto& row) { return NestRows(PeakSumColumns(), BlockSums(row.peak)); }},
      {"peak_layers", "", "by layer; layers of blocks that are alike are one",
       [](auto& row) { return NestRows(PeakSumColumns(), LayerSums(row.peak)); }},
      {"peak_tensors", "", "the largest tensors",
       [](auto& row) {
         const auto& all = row.peak.holders;
         return NestRows(PeakColumns(),
                         std::span(all).first(std::min(kWrittenHolders, all.size())));
       }},
  };
  for (Column<FitRow>& column : columns) {
    if (!column.name.starts_with("peak_") || column.type != "array") continue;
    column.present = [](const FitRow& row) { return row.change == "none"; };
  }
  return columns;
}

std::string FormatFits(const std::vector<Fit>& fits, size_t width) {
  constexpr std::string_view kVerdict[] = {"workload",
                                           "batch",
                                           "device",
                                           "status",
                                           "margin_bytes",
                                           "memory_bytes",
                                           "peak_reserved_bytes",
                                           "peak_allocated_bytes",
                                           "iteration_ms",
                                           "outside_bytes",
                                           "recorded_reserved_bytes",
                                           "peak_requested_bytes"};
  std::vector<FitRow> verdicts;
  for (const Fit& fit : fits) {
    verdicts.push_back(fit.as_it_is);
    verdicts.back().workload = ShortName(fit.as_it_is.workload);
  }
  std::string text = "Sizes are in GiB.\n\n" + FormatTable(FitColumns(), kVerdict, verdicts, width);
  for (const Fit& fit : fits) {
    if (fit.as_it_is.status == FitStatus::kNot) text += FormatChanges(fit, width);
  }
  std::set<std::string_view> told;  // workloads; the peak is the same on all devices
  for (const Fit& fit : fits) {
    const std::string& workload = fit.as_it_is.workload;
    if (!told.insert(workload).second) continue;
    text += fmt::format("\n{}, as it is\n{}", ShortName(workload),
                        FormatPeakSums(fit.as_it_is.peak, kShownHolders));
  }
  return text;
}

}  // namespace spillway
