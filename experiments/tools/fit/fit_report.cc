// The results of `FindFits` as rows of columns, and as a text for people.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/ranking.h"
#include "experiments/output/wrap.h"
#include "experiments/tools/fit/fit.h"

namespace spillway::lab {
namespace {

// The number of policies of research that the table of a workload shows.
constexpr size_t kShownPolicies = 8;
constexpr size_t kShownHolders = 5;
constexpr size_t kWrittenHolders = 20;  // in JSON

std::string_view Name(FitStatus status) {
  constexpr std::string_view kNames[] = {"fits", "reclaims", "no", "failed"};
  return kNames[static_cast<size_t>(status)];
}

// Returns the name of the file, if the workload is the path of one.
std::string_view ShortName(std::string_view workload) {
  return workload.substr(workload.rfind('/') + 1);
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
  const bool reclaims = std::ranges::count(rows, FitStatus::kReclaims, &FitRow::status) > 0;
  const std::string_view kColumns[] = {"remedy",
                                       reclaims ? "status" : "peak_allocated_bytes",
                                       "peak_reserved_bytes",
                                       "margin_bytes",
                                       "iteration_ms",
                                       "slowdown"};
  for (FitRow& row : rows) {
    row.remedy.resize(std::min(row.remedy.size(), row.remedy.find(',')));
    if (row.change == "combination") {
      const auto others = std::ranges::count(row.remedy, '+');
      row.remedy = fmt::format("{} changes together", others + 1);
    }
  }
  const std::string table = FormatTable(FitColumns(), kColumns, rows);
  std::string text;
  size_t line = 0;  // the table's line, from 0 for the header
  for (size_t begin = 0, end = 0; begin < table.size(); begin = end, ++line) {
    end = table.find('\n', begin) + 1;
    text += table.substr(begin, end - begin);
    if (line > 0) text += FormatPython(rows[line - 1].python);
  }
  return text;
}

// Returns a sentence that explains "reclaims", if one of the rows says so.
std::string ExplainReclaims(std::span<const FitRow> rows) {
  if (std::ranges::count(rows, FitStatus::kReclaims, &FitRow::status) == 0) return {};
  return Wrapped(
      "What reclaims would reserve more than there is, by its negative margin; it fits because the "
      "allocator then gives cached memory back to the driver and takes it again, which costs time "
      "that is not predicted.");
}

// Returns sentences that explain the code and the numbers of the changes.
std::string FormatRemarks(std::span<const FitRow> rows) {
  const auto any = [&](const auto& holds) { return std::ranges::any_of(rows, holds); };
  std::string text;
  if (any([](const FitRow& row) { return row.remedy.find("checkpoint") != row.remedy.npos; })) {
    text += Wrapped(
        "Here model is your module; checkpoint and create_selective_checkpoint_contexts are in "
        "torch.utils.checkpoint. Times hold if the host keeps up with the GPU.");
  }
  struct Remark {
    std::string_view part, text;  // of `FitRow::remedy`, which names all changes of a combination
  };
  constexpr Remark kRemarks[] = {
      {"micro-batches",
       "forward returns the mean loss of a part of the batch. Batch normalization sees the parts "
       "only."},
      {"bf16 weights",
       "bf16 weights change the numerics. The prediction has the log-softmax of the loss in fp32. "
       "Memory of other values that the program casts to fp32 comes in addition."},
      {"as many)",
       "With more GPUs, each one keeps its batch, so that all of them train on a larger one; the "
       "time is that of each."},
      {"reshard", "FSDPModule is in torch.distributed.fsdp."},
      {"reduce gradients",
       "Gradients that are added up in bf16 change the numerics; mixed is the mp_policy of each "
       "fully_shard, and MixedPrecisionPolicy is in torch.distributed.fsdp."},
      {"chunks of tokens",
       "body is the model without its head, which makes the logits of rows of tokens; "
       "cross_entropy is in torch.nn.functional."},
      {"8-bit AdamW", "8-bit moments change the numerics, by bitsandbytes from 0.45 on."},
      {"optimizer on host",
       "With the optimizer on the host, the time is an estimate: the host is assumed to read and "
       "write so much in a second to update parameters."},
      {"torch.compile",
       "Under torch.compile, the time is an estimate until it is measured: products take as long "
       "for each operation as they do without it, and other kernels for each byte."},
      {"frozen weights",
       "Frozen weights come from the host before operators read them, those of at least 1 MiB; "
       "with device=\"cuda\", the model is on the CPU before spillway_torch.fit."},
      {"Spillway",
       "spillway_torch.fit decides which activations go to the host or are recomputed, and which "
       "share of the optimizer's state is on the host; with early_updates, the program may neither "
       "clip nor add up gradients. The results are those of an ordinary step, but for the last "
       "bits of a loss in chunks."},
  };
  for (const Remark& remark : kRemarks) {
    if (any([&](const FitRow& row) { return row.remedy.find(remark.part) != row.remedy.npos; })) {
      text += Wrapped(std::string(remark.text));
    }
  }
  if (any([](const FitRow& row) { return row.batch_source == BatchSource::kScaled; })) {
    text += Wrapped(
        "A scaled batch is an estimate from one recording. Give a second recording of another "
        "batch to interpolate.");
  }
  return text + ExplainReclaims(rows);
}

// Returns the changes in PyTorch with which the workload does not fit, and those that were not
// tried.
std::string FormatMisses(const Fit& fit) {
  std::string text;
  for (const FitRow& row : fit.misses) {
    if (row.change == "spillway") {
      text += Wrapped(fmt::format("It does not fit with {}: {}.", row.remedy, row.reason));
      continue;
    }
    const Bytes missing = row.metrics.peak_reserved - row.available();
    text += Wrapped(fmt::format(
        "It does not fit with {}, which reserves {}{}.", row.remedy,
        FormatBytes(row.metrics.peak_reserved),
        missing > Bytes() ? fmt::format(", {} too much", FormatBytes(missing)) : std::string()));
  }
  for (const FitRow& row : fit.failures)
    text += fmt::format("{} failed: {}\n", row.policy, row.reason);
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
  if (row.construction > Bytes()) {
    text += Wrapped(
        fmt::format("It is the construction that takes {}: where a model is built in fp32 on the "
                    "GPU and then cast, both copies exist. Build it in bf16, or on the CPU, first; "
                    "all changes were tried with that.",
                    FormatBytes(row.construction)));
  }
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

Columns<FitRow> FitColumns() {
  const auto metric = [](auto member) {
    return [member](const FitRow& row) { return row.metrics.*member; };
  };
  Columns<FitRow> columns = {
      {"workload", "", "as given", &FitRow::workload, "workload"},
      {"network", "", "of it", &FitRow::network},
      {"batch", "1", "samples per iteration", &FitRow::batch, "batch"},
      {"device", "", "name of the GPU", &FitRow::device, "device"},
      {"memory_bytes", "B", "device memory", &FitRow::memory, "memory"},
      {"outside_bytes", "B", "of that, held beside the allocator", &FitRow::outside, "outside"},
      {"change", "",
       "none, or the change: allocator, checkpoint, selective checkpoint, save_on_cpu, batch, "
       "micro-batches, construction, combination, bf16, autocast, 8-bit optimizer, offloaded "
       "optimizer, loss chunks, more GPUs, more shards, reshard, bf16 reduction, compile, compile "
       "within the budget, spillway (activations and state as spillway_torch.fit moves them), "
       "or of policies of research policy, policy and allocator, or weights streamed (parameters "
       "are outside, too)",
       &FitRow::change, "change"},
      {"policy", "", "that it runs under", &FitRow::policy, "policy"},
      {"allocator", "", "that serves it", &FitRow::allocator, "allocator"},
      {"status", "",
       "fits, reclaims (only where the allocator gives cached memory back), no, or failed if the "
       "policy broke down",
       [](auto& row) { return Name(row.status); }, "fits"},
      {"peak_requested_bytes", "B",
       "most bytes asked for at once; of change none, as are all "
       "peaks and times of it, with unlimited memory",
       metric(&Metrics::peak_requested), "requested"},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once",
       metric(&Metrics::peak_allocated), "allocated"},
      {"peak_reserved_bytes", "B", "most bytes taken from the device",
       metric(&Metrics::peak_reserved), "reserved"},
      {"recorded_reserved_bytes", "B",
       "most that PyTorch took from the device where it was recorded, first iterations included",
       [](auto& row) {
         return row.recorded_reserved > Bytes(0) ? std::optional(row.recorded_reserved)
                                                 : std::nullopt;
       },
       "recorded"},
      {"margin_bytes", "B", "what is left of the memory beside both; negative if it is short",
       [](auto& row) { return row.available().count() - row.metrics.peak_reserved.count(); },
       "margin"},
      {"iteration_ms", "ms", "predicted", metric(&Metrics::iteration), "time ms"},
      {"host_bound", "",
       "true if the host takes at least 80 % of the iteration to issue its commands",
       [](auto& row) { return IsHostBound(row.metrics); }},
      {"fastest_host_ms", "ms",
       "iteration_ms of change none on the fastest host that was measured; absent unless the "
       "host's times are assumed",
       [](auto& row) {
         return When(row.host_range.has_value(), row.host_range.value_or(HostRange()).fastest);
       }},
      {"slowest_host_ms", "ms", "on the slowest one",
       [](auto& row) {
         return When(row.host_range.has_value(), row.host_range.value_or(HostRange()).slowest);
       }},
      {"arithmetic", "", "of the matrix products for which the time holds: fp32, tf32, bf16, ...",
       &FitRow::arithmetic, "arithmetic"},
      {"cost", "", "where the kernel times come from", &FitRow::cost, "times"},
      {"slowdown", "1", "time per sample over change none", &FitRow::slowdown, "slowdown"},
      {"reason", "", "why it does not fit, or how the policy failed",
       [](auto& row) { return IfAny(row.reason); }},
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
      {"samples_per_second", "1/s", "batch over iteration_ms",
       [](auto& row) { return SamplesPerSecond(row.batch, row.metrics.iteration); }, "samples/s"},
      {"tokens_per_second", "1/s",
       "rows that the embedding of the step looks up, over iteration_ms",
       [](auto& row) {
         return row.tokens > 0 ? SamplesPerSecond(row.tokens, row.metrics.iteration) : std::nullopt;
       },
       "tokens/s"},
      {"world", "1", "processes that share the step, one for each GPU; absent if it is one",
       [](auto& row) { return row.world > 1 ? std::optional(row.world) : std::nullopt; }, "world"},
      {"communication_ms", "ms", "time of the collectives",
       [](auto& row) { return When(row.world > 1, row.metrics.communication); }, "collectives ms"},
      {"exposed_ms", "ms", "the part of it in which the compute stream does nothing else",
       [](auto& row) { return When(row.world > 1, row.metrics.exposed); }, "exposed ms"},
  };
  for (Column<FitRow>& column : columns) {
    if (!column.name.starts_with("peak_") || column.type != "array") continue;
    column.present = [](const FitRow& row) { return row.change == "none"; };
  }
  return columns;
}

std::string FormatFits(const std::vector<Fit>& fits, size_t width) {
  const bool several =
      std::ranges::any_of(fits, [](const Fit& fit) { return fit.as_it_is.world > 1; });
  std::vector<std::string_view> shown;
  for (const std::string_view name :
       {"workload", "batch", "device", "best", "fits", "iteration_ms", "peak_reserved_bytes",
        "tokens_per_second", "exposed_ms", "margin_bytes", "memory_bytes", "cost",
        "peak_allocated_bytes", "outside_bytes", "recorded_reserved_bytes",
        "peak_requested_bytes"}) {
    if (several || (name != "exposed_ms" && name != "tokens_per_second")) shown.push_back(name);
  }
  std::vector<FitRow> verdicts;
  std::vector<std::string> workloads;  // in the order given
  for (const Fit& fit : fits) {
    verdicts.push_back(fit.as_it_is);
    verdicts.back().workload = ShortName(fit.as_it_is.workload);
    verdicts.back().cost = fit.as_it_is.cost.substr(0, fit.as_it_is.cost.find(' '));
    workloads.push_back(verdicts.back().workload);
  }
  const StandingOf<FitRow> standing = [&](const FitRow& row) {
    Standing one{.score = row.metrics.iteration.milliseconds()};
    if (row.status == FitStatus::kNot) {
      one.missing = std::max(Bytes(), row.metrics.peak_reserved - row.available());
    }
    one.fits = row.status == FitStatus::kFits ? "yes" : Name(row.status);
    one.group = static_cast<size_t>(std::ranges::find(workloads, row.workload) - workloads.begin());
    return one;
  };
  std::string text =
      "Sizes are in GiB.\n\n" +
      FormatRanked<FitRow>(FitColumns(), shown, verdicts, standing, "the fastest", width) +
      ExplainReclaims(verdicts);
  std::set<std::string_view> met;
  for (const std::string& workload : workloads) {
    if (!met.insert(workload).second) continue;
    std::vector<HostPart> hosts;
    for (const FitRow& row : verdicts) {
      if (row.workload == workload && row.policy == "as-recorded") {
        hosts.push_back({row.device, "", row.metrics, row.host_range, row.lacks_links});
      }
    }
    text += FormatHost(workload, hosts, kTextWidth);
  }
  for (const Fit& fit : fits) {
    if (!fit.as_it_is.leaves_recorded) continue;
    text += Wrapped(fmt::format(
        "Kernel times of {} were recorded on {}, but not on all of these devices. They are "
        "analytic on all, so that devices are compared by one measure; --device {} alone takes "
        "the recorded ones.",
        ShortName(fit.as_it_is.workload), fit.as_it_is.device, fit.as_it_is.device));
  }
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

}  // namespace spillway::lab
