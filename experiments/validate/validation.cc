#include "experiments/validate/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/core/check.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

// Time that copies ran, the sum over both directions.
Duration CopyTime(const Report& report) {
  Duration time;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.kind != CommandKind::kKernel) time += entry.interval.end - entry.interval.start;
  }
  return time;
}

const Value& Find(const Row& row, std::string_view name) {
  const auto column =
      std::find_if(row.begin(), row.end(), [&](const Column& c) { return c.name == name; });
  SPILLWAY_CHECK(column != row.end());
  return column->value;
}

// "12.3", or "-" where there is no number.
std::string Number(const Row& row, std::string_view name, double unit, int digits) {
  const Value& value = Find(row, name);
  if (const auto* number = std::get_if<double>(&value)) {
    return fmt::format("{:.{}f}", *number / unit, digits);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return fmt::format("{:.{}f}", static_cast<double>(*number) / unit, digits);
  }
  return "-";
}

std::string_view KindName(CommandKind kind) {
  switch (kind) {
    case CommandKind::kKernel:
      return "kernel";
    case CommandKind::kToDevice:
      return "prefetch";
    case CommandKind::kToHost:
      return "offload";
  }
  SPILLWAY_CHECK(false);
}

}  // namespace

double Validation::error() const {
  const double measured_ms = measured.execution->typical_iteration().milliseconds();
  return predicted.report.metrics.iteration.milliseconds() / measured_ms - 1;
}

Validation Validate(const Setup& setup, const PolicyMaker& make, const BackendFactories& backends) {
  Setup resolved = Resolve(setup, {&make, 1}).setup;
  Validation validation;
  validation.predicted = Simulate(resolved, *make());
  if (validation.predicted.report.fits() && !validation.predicted.report.steady) {
    Setup as_often = resolved;  // iterations differ, so compare the same one
    as_often.backend = kSimulator;
    validation.predicted = RunPolicy(as_often, *make());
  }
  const Report& predicted = validation.predicted.report;
  if (!predicted.fits()) {
    validation.measured = validation.predicted;  // nothing was run
    return validation;
  }
  resolved.footprint = FootprintOf(resolved, validation.predicted);
  validation.measured = RunPolicy(resolved, *make(), backends);
  const Report& measured = validation.measured.report;
  validation.decisions_equal = measured.decisions == predicted.decisions;
  validation.placements_equal = measured.placements == predicted.placements;
  if (measured.fits()) validation.violations = Check(*validation.measured.trace, measured);
  return validation;
}

bool Agrees(const Validation& validation, double tolerance) {
  if (!validation.predicted.report.fits()) return true;
  return validation.fits() && validation.parity() && std::abs(validation.error()) <= tolerance;
}

Row MakeValidationRow(const Setup& setup, std::string_view policy, const Validation& validation) {
  const Trace& trace = *validation.predicted.trace;
  const Report& predicted = validation.predicted.report;
  const Report& measured = validation.measured.report;
  const bool fits = validation.fits();
  Row row{
      {"workload", trace.name},
      {"policy", std::string(policy)},
      {"memory_bytes", setup.memory == Bytes::Unlimited() ? Value() : Value(setup.memory.count())},
      {"allocator", setup.allocator},
      {"status", std::string(fits ? "ok" : "oom")},
  };
  const auto add = [&](std::string name, auto value) {
    row.push_back({std::move(name), fits ? Value(value) : Value()});
  };
  const auto add_times = [&](const std::string& name, Duration p, Duration m) {
    add("predicted_" + name + "_ms", p.milliseconds());
    add("measured_" + name + "_ms", m.milliseconds());
  };
  const auto add_bytes = [&](const std::string& name, Bytes p, Bytes m) {
    add("predicted_" + name + "_bytes", p.count());
    add("measured_" + name + "_bytes", m.count());
  };
  const Metrics& p = predicted.metrics;
  const Metrics& m = measured.metrics;
  const Duration typical = fits ? validation.measured.execution->typical_iteration() : Duration();
  add_times("iteration", p.iteration, typical);
  add("error", fits ? validation.error() : 0.0);
  add("decisions_equal", validation.decisions_equal);
  add("placements_equal", validation.placements_equal);
  add("violations", static_cast<int64_t>(validation.violations.size()));
  add_times("compute", p.compute, m.compute);
  add_times("copy", CopyTime(predicted), CopyTime(measured));
  add_times("stall", p.stalls.total(), m.stalls.total());
  add_times("stall_fetch", p.stalls.fetch, m.stalls.fetch);
  add_times("stall_fence", p.stalls.fence, m.stalls.fence);
  add_times("stall_memory", p.stalls.memory, m.stalls.memory);
  add_times("stall_launch", p.stalls.launch, m.stalls.launch);
  add_times("stall_drain", p.stalls.drain, m.stalls.drain);
  add_bytes("peak_reserved", p.peak_reserved, m.peak_reserved);
  add_bytes("peak_allocated", p.peak_allocated, m.peak_allocated);
  add_bytes("offloaded", p.offloaded, m.offloaded);
  add_bytes("prefetched", p.prefetched, m.prefetched);
  add_bytes("pinned_peak", p.pinned_peak, m.pinned_peak);
  // The stamped iteration, in which the measured parts above were taken, and the spread of the
  // others.
  add("stamped_iteration_ms", m.iteration.milliseconds());
  std::vector<Duration> times;
  if (const auto& execution = validation.measured.execution) times = execution->iteration_times;
  if (times.size() > static_cast<size_t>(kWarmUp) + 1) {
    times.erase(times.begin(), times.begin() + kWarmUp);
    times.pop_back();
  }
  const auto [shortest, longest] = std::minmax_element(times.begin(), times.end());
  add("shortest_iteration_ms", times.empty() ? 0.0 : shortest->milliseconds());
  add("longest_iteration_ms", times.empty() ? 0.0 : longest->milliseconds());
  add("timed_iterations", static_cast<int64_t>(times.size()));
  row.push_back({"preset", trace.preset});
  row.push_back({"device", setup.device.name});
  row.push_back({"cost", setup.cost->Provenance()});
  row.push_back({"reason", predicted.fits() ? Value() : Value(predicted.out_of_memory->Message())});
  return row;
}

std::string FormatValidation(const std::vector<Row>& rows) {
  constexpr double kGiB = 1073741824.0;
  std::vector<std::vector<std::string>> cells{
      {"workload", "policy", "memory GiB", "predicted ms", "measured ms", "error %", "parity",
       "compute ms", "measured", "copy ms", "measured", "stall ms", "measured"}};
  for (const Row& row : rows) {
    const bool fits = Find(row, "status") == Value(std::string("ok"));
    const bool parity = fits && Find(row, "decisions_equal") == Value(true) &&
                        Find(row, "placements_equal") == Value(true) &&
                        Find(row, "violations") == Value(int64_t{0});
    cells.push_back(
        {std::get<std::string>(Find(row, "workload")), std::get<std::string>(Find(row, "policy")),
         Number(row, "memory_bytes", kGiB, 2), Number(row, "predicted_iteration_ms", 1, 2),
         Number(row, "measured_iteration_ms", 1, 2), Number(row, "error", 0.01, 1),
         !fits    ? "oom"
         : parity ? "yes"
                  : "NO",
         Number(row, "predicted_compute_ms", 1, 2), Number(row, "measured_compute_ms", 1, 2),
         Number(row, "predicted_copy_ms", 1, 1), Number(row, "measured_copy_ms", 1, 1),
         Number(row, "predicted_stall_ms", 1, 2), Number(row, "measured_stall_ms", 1, 2)});
  }
  return FormatTable(cells);
}

std::vector<Row> CommandRows(const Validation& validation) {
  const Trace& trace = *validation.predicted.trace;
  const auto& predicted = validation.predicted.report.timeline;
  const auto& measured = validation.measured.report.timeline;
  SPILLWAY_CHECK(predicted.size() == measured.size());
  std::vector<Row> rows;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const TimelineEntry& p = predicted[i];
    const TimelineEntry& m = measured[i];
    rows.push_back(
        {{"op", trace.op(p.op).name},
         {"kind", std::string(KindName(p.kind))},
         {"tensor", p.tensor == kNoTensor ? Value() : Value(trace.tensor(p.tensor).name)},
         {"recompute", p.recompute},
         {"predicted_start_ms", p.interval.start.milliseconds()},
         {"measured_start_ms", m.interval.start.milliseconds()},
         {"predicted_ms", (p.interval.end - p.interval.start).milliseconds()},
         {"measured_ms", (m.interval.end - m.interval.start).milliseconds()},
         {"nominal_ms", p.nominal.milliseconds()},
         {"issued_ms", m.interval.issued.milliseconds()}});
  }
  return rows;
}

void CheckProvenance(const Provenance& provenance, std::string_view gpu, std::string_view cudnn,
                     std::string_view math) {
  const auto require = [](std::string_view what, std::string_view recorded,
                          std::string_view running) {
    if (recorded == running) return;
    throw InputError(fmt::format(
        "the cost table was recorded with {} {}, but this machine runs {}; record it here with "
        "spillway record, or allow any table",
        what, recorded, running));
  };
  require("GPU", provenance.gpu, gpu);
  require("cuDNN", provenance.cudnn, cudnn);
  require("arithmetic", provenance.math, math);
}

}  // namespace spillway
