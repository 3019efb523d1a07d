#include "experiments/cli/frame/case_results.h"

#include <fmt/format.h>

#include "experiments/output/wrap.h"

namespace spillway::cli {

std::string CheckedRemark(std::string_view what) {
  return fmt::format(
      "checked {}, found no violation: live blocks lie apart; every op found its operands with the "
      "contents that the trace says; host copies were complete before they were read; conflicting "
      "accesses are ordered by waits and in time; commands of a stream do not overlap",
      what);
}

namespace {

// Returns the title of a table: workload, device, memory and the source of kernel times.
std::string Title(const LoadedCase& loaded) {
  const Inputs& inputs = *loaded.inputs;
  const Trace& trace = *inputs.trace();
  const Bytes memory = inputs.MemoryOf(loaded.asked);
  const Report& ideal = inputs.IdealOf(loaded.asked);
  const std::string provenance = inputs.cost()->Provenance();
  const std::string arithmetic = inputs.cost()->ArithmeticFor(trace);
  return fmt::format(
      "{} ({}, {}) on {} with {}\nmemory: {}; floor (0%) {}, in-core peak (100%) {}\n"
      "kernel times: {}\n",
      trace.name, trace.preset, trace.training ? "training" : "inference",
      inputs.device().description,
      memory != Bytes::Unlimited() ? FormatBytes(memory) : "unlimited memory",
      loaded.asked.memory ? fmt::format("{} was asked for", loaded.asked.memory->text())
                          : "all of the device",
      FormatBytes(ideal.bounds.layer), FormatBytes(ideal.metrics.peak_reserved),
      provenance.ends_with(arithmetic) ? provenance
                                       : fmt::format("{}, {}", provenance, arithmetic));
}

// Returns a line that says why a policy does not fit, cut at `width` unless it is 0. `alone` says
// that the table has one row: then lines also say who holds the memory.
std::string FormatMisfit(const RunResult& result, bool alone, size_t width) {
  const auto& request = result.report.out_of_memory;
  const std::string reason = alone || !request ? result.Reason() : Brief(*request);
  const std::string line = fmt::format("{}: {}", result.policy, reason);
  return alone ? Wrapped(line, width) : CutAt(width, line) + "\n";
}

// Returns a line that says how much a better plan could gain, or an empty text if the bound does
// not hold for the policy.
std::string FormatGap(const RunResult& result) {
  if (!result.bound_joint || !result.planned) return {};
  const double time = result.iteration.milliseconds(), bound = result.bound_joint->milliseconds();
  return fmt::format(
      "{}: {:.1f} ms are {:.1f} % over {:.1f} ms, which no run in this memory beats that keeps "
      "parameters and state there\n",
      result.policy, time, 100 * (time / bound - 1), bound);
}

// Returns a sentence that says how many bytes lack if parameters and optimizer state find no room
// on the device and outside together, or an empty text.
std::string FormatLacking(const LoadedCase& loaded) {
  const Inputs& inputs = *loaded.inputs;
  const Trace& trace = *inputs.trace();
  Bytes needed, outside = inputs.device().host_memory;
  for (const Tensor& tensor : trace.tensors) {
    const bool persists =
        tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
    if (persists && !tensor.alias_of && !tensor.part_of) needed += tensor.size;
  }
  for (const ExternalPool& pool : inputs.device().pools) outside += pool.size;
  const Bytes memory = inputs.MemoryOf(loaded.asked);
  if (memory == Bytes::Unlimited() || outside == Bytes::Unlimited() || needed <= memory + outside)
    return {};
  return fmt::format(
      "Parameters and optimizer state take {}, {} more than the {} of the device and the {} "
      "outside: "
      "no policy fits, whatever it moves.\n",
      FormatBytes(needed), FormatBytes(needed - memory - outside), FormatBytes(memory),
      FormatBytes(outside));
}

std::string FormatGroup(const CaseResults& group, size_t width) {
  const std::vector<RunResult> results = Ranked<RunResult>(group.results, StandingOfResult);
  std::string text =
      Wrapped(Title(group.loaded), width) + "\n" + FormatComparison(results, width) + "\n";
  if (const std::string pools = FormatPools(results, width); !pools.empty()) text += pools + "\n";
  if (const std::string table = FormatCompression(results, width); !table.empty()) {
    text += table + "\n";
  }
  std::vector<HostPart> hosts;
  for (const RunResult& result : results) {
    if (!result.fits() || !result.timed || result.file.empty()) continue;
    hosts.push_back({result.device, results.size() > 1 ? result.policy : std::string(),
                     result.report.metrics, result.host_range, result.lacks_links});
  }
  text += FormatHost(results.size() > 1 ? group.loaded.inputs->trace()->name : results[0].policy,
                     hosts, width);
  for (const RunResult& result : results) {
    if (group.loaded.asked.allocator.name() != result.allocator) {
      text += Wrapped(fmt::format("{}: allocator {}\n", result.policy, result.allocator), width);
    }
    text += Wrapped(FormatGap(result), width);
    if (!result.fits()) text += FormatMisfit(result, results.size() == 1, width);
  }
  text += Wrapped(FormatLacking(group.loaded), width);
  return text;
}

}  // namespace

std::string FormatResults(std::span<const CaseResults> groups, const FormatOption& format) {
  std::vector<RunResult> all;
  for (const CaseResults& group : groups) {
    all.insert(all.end(), group.results.begin(), group.results.end());
  }
  const auto table = [&] {
    std::string text;
    for (const CaseResults& group : groups) {
      if (group.results.empty()) continue;
      text += text.empty() ? "" : "\n";
      text += FormatGroup(group, format.width());
    }
    return text;
  };
  return FormatAs(format.view(), ResultColumns(), all, "spillway.results/v1", table, kUsualColumns);
}

}  // namespace spillway::cli
