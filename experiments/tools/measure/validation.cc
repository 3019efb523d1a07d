#include "experiments/tools/measure/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "experiments/run/archive.h"
#include "experiments/run/isolation.h"
#include "experiments/run/prepare.h"
#include "sim/core/check.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

Duration LengthOf(const Interval& interval) { return interval.end - interval.start; }

// Returns the time that copies ran, summed over both directions.
Duration CopyTime(const Report& report) {
  Duration time;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.kind != CommandKind::kKernel) time += LengthOf(entry.interval);
  }
  return time;
}

// Returns the times of the timed iterations, ascending. REQUIRES: validation.fits().
std::vector<Duration> TimesOf(const Validation& validation) {
  std::vector<Duration> times = validation.measured.execution->iteration_times;
  if (times.size() > static_cast<size_t>(kWarmUp) + 1) {
    times.erase(times.begin(), times.begin() + kWarmUp);
    times.pop_back();
  }
  std::sort(times.begin(), times.end());
  return times;
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

Validation Validate(const Prepared& prepared, const BackendFactories& backends) {
  Validation validation;
  validation.predicted = PredictExecution(prepared.run);
  const Report& predicted = validation.predicted.report;
  if (!predicted.fits()) {
    validation.measured = validation.predicted;  // nothing was run
    return validation;
  }
  validation.measured = Run(prepared, backends);
  const Report& measured = validation.measured.report;
  validation.decisions_equal = measured.decisions == predicted.decisions;
  validation.placements_equal = measured.placements == predicted.placements;
  if (measured.fits()) validation.violations = Check(*validation.measured.trace, measured);
  return validation;
}

Duration InSequence(const Validation& in_core) {
  constexpr Duration kMost = Duration::Microseconds(5);
  if (!in_core.fits()) return {};
  const Trace& trace = *in_core.predicted.trace;
  const Liveness liveness(trace);
  int64_t kernels = 0;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const size_t slots = trace.ops[i].slots.size();
    if (i > 0 && slots == 1 &&
        Alike(trace, liveness, static_cast<OpId>(i - 1), static_cast<OpId>(i))) {
      continue;
    }
    kernels += static_cast<int64_t>(slots);
  }
  const Duration missing =
      in_core.measured.execution->typical_iteration() - in_core.predicted.report.metrics.iteration;
  return std::clamp(Duration::Picoseconds(missing.picoseconds() / std::max<int64_t>(kernels, 1)),
                    Duration(), kMost);
}

Duration MeasureInSequence(const CostTable& table, const Trace& trace, const Device& device,
                           const BackendFactories& backends) {
  constexpr int kTimed = 12;
  CostTable alone = table;
  alone.in_sequence = Duration();
  Draft run;
  run.trace = std::make_shared<const Trace>(trace);
  run.device = device;
  run.cost = std::make_shared<const TableCostModel>(std::move(alone), device);
  run.memory = device.memory;
  run.backend = "cuda";
  run.options.iterations = kWarmUp + kTimed + 1;
  return InSequence(Validate(Decide({}, std::move(run), backends), backends));
}

std::optional<std::string> ValidationResult::Reason() const {
  if (!failure.empty()) return failure;
  const auto& out_of_memory = validation.predicted.report.out_of_memory;
  return out_of_memory ? std::optional(out_of_memory->Message()) : std::nullopt;
}

ValidationResult MakeValidationResult(const Case& asked, const Inputs& inputs,
                                      Validation validation) {
  const auto& ran = validation.predicted.trace;
  return {RowCase(asked, inputs, ran ? *ran : *inputs.trace()),
          asked.allocator.name(),
          std::move(validation),
          {}};
}

ValidationResult ValidateForRow(const Case& asked, const Inputs& inputs,
                                const BackendFactories& backends,
                                const std::function<void(Device&)>& change) {
  std::string failure;
  try {
    Draft draft = inputs.DraftOf(asked);
    if (change) change(draft.device);
    const Prepared prepared = Decide(asked, std::move(draft), backends);
    return MakeValidationResult(asked, inputs, Validate(prepared, backends));
  } catch (const PolicyError& error) {
    failure = error.what();
  } catch (const UsageError& error) {  // a parameter does not suit the workload
    failure = error.what();
  }
  ValidationResult result = MakeValidationResult(asked, inputs, {});
  result.failure = std::move(failure);
  return result;
}

std::string SaveValidation(const ValidationResult& result,
                           const std::shared_ptr<const Trace>& given) {
  const auto& [workload, network, preset, batch, training, device, memory, memory_request, cost,
               arithmetic, attention, optimizer, precision, accumulate, clip_norm, loss_chunks,
               file, policy] = static_cast<const RowCase&>(result);
  const auto& [predicted, measured, decisions, placements, violations] = result.validation;
  return Archive::Save(workload, network, preset, batch, training, device, memory, memory_request,
                       cost, arithmetic, attention, optimizer, precision, accumulate, clip_norm,
                       loss_chunks, file, policy, result.allocator, result.failure, decisions,
                       placements, violations, SaveOutcome(predicted, given),
                       SaveOutcome(measured, given));
}

ValidationResult LoadValidation(std::string bytes, const std::shared_ptr<const Trace>& given) {
  ValidationResult result;
  auto& [workload, network, preset, batch, training, device, memory, memory_request, cost,
         arithmetic, attention, optimizer, precision, accumulate, clip_norm, loss_chunks, file,
         policy] = static_cast<RowCase&>(result);
  Validation& validation = result.validation;
  std::string predicted, measured;
  Archive::Load(std::move(bytes), workload, network, preset, batch, training, device, memory,
                memory_request, cost, arithmetic, attention, optimizer, precision, accumulate,
                clip_norm, loss_chunks, file, policy, result.allocator, result.failure,
                validation.decisions_equal, validation.placements_equal, validation.violations,
                predicted, measured);
  validation.predicted = LoadOutcome(std::move(predicted), given);
  validation.measured = LoadOutcome(std::move(measured), given);
  return result;
}

Columns<ValidationResult> ValidationColumns() {
  using R = ValidationResult;
  Columns<R> columns{
      {"workload", "", "network and batch", &R::workload, "workload"},
      {"policy", "", "as given", &R::policy, "policy"},
      {"memory_bytes", "B", "device memory that the run may use; absent if unlimited",
       [](auto& r) { return IfLimited(r.memory); }, "memory GiB"},
      {"allocator", "", "as given", &R::allocator},
      {"status", "", "ok, oom if the workload does not fit, or failed if the policy broke down",
       [](auto& r) { return !r.failure.empty() ? "failed"
                            : r.fits()         ? "ok"
                                               : "oom"; }, "status"},
  };
  const auto add = [&](std::string name, std::string_view unit, std::string_view help, auto get,
                       std::string_view header = {}) {
    columns.push_back({std::move(name), unit, help,
                       [get](const R& r) {
                         return r.fits() ? std::optional(std::invoke(get, r.validation))
                                         : std::nullopt;
                       },
                       header});
  };
  // Adds a predicted and a measured column. `get` takes a report.
  const auto add_pair = [&](const std::string& name, std::string_view unit, std::string_view help,
                            auto get, std::string_view header = {}) {
    add(
        "predicted_" + name, unit, help, [get](auto& v) { return get(v.predicted.report); },
        header);
    add(
        "measured_" + name, unit, help, [get](auto& v) { return get(v.measured.report); },
        "measured");
  };
  const auto metric = [](auto member) {
    return [member](const Report& report) { return report.metrics.*member; };
  };
  const auto stall = [](auto member) {
    return [member](const Report& report) { return std::invoke(member, report.metrics.stalls); };
  };
  add(
      "predicted_iteration_ms", "ms", "one iteration",
      [](auto& v) { return v.predicted.report.metrics.iteration; }, "predicted ms");
  add(
      "measured_iteration_ms", "ms", "the median of those timed",
      [](auto& v) { return v.measured.execution->typical_iteration(); }, "measured");
  add("error", "1", "(predicted - measured) / measured", &Validation::error, "error");
  add("decisions_equal", "", "all of them", &Validation::decisions_equal, "decisions");
  add("placements_equal", "", "all of them", &Validation::placements_equal, "placements");
  add(
      "violations", "1", "of the measured order", [](auto& v) { return v.violations.size(); },
      "violations");
  add_pair("compute_ms", "ms", "kernels ran", metric(&Metrics::compute), "compute ms");
  add_pair("copy_ms", "ms", "copies ran, the sum over both directions", CopyTime, "copy ms");
  add_pair("stall_ms", "ms", "kernels waited", stall(&Stalls::total), "stall ms");
  add_pair("stall_fetch_ms", "ms", "for an input", stall(&Stalls::fetch));
  add_pair("stall_fence_ms", "ms", "at the end of a layer", stall(&Stalls::fence));
  add_pair("stall_memory_ms", "ms", "for memory", stall(&Stalls::memory));
  add_pair("stall_launch_ms", "ms", "for the host", stall(&Stalls::launch));
  add_pair("stall_drain_ms", "ms", "last copies", stall(&Stalls::drain));
  add_pair("peak_reserved_bytes", "B", "most bytes held", metric(&Metrics::peak_reserved));
  add_pair("peak_allocated_bytes", "B", "most bytes in blocks", metric(&Metrics::peak_allocated));
  add_pair("offloaded_bytes", "B", "copied to the host", metric(&Metrics::offloaded));
  add_pair("prefetched_bytes", "B", "copied to the device", metric(&Metrics::prefetched));
  add_pair("pinned_peak_bytes", "B", "most pinned host memory", metric(&Metrics::pinned_peak));
  add("stamped_iteration_ms", "ms", "the one in which the measured parts were taken",
      [](auto& v) { return v.measured.report.metrics.iteration; });
  add("shortest_iteration_ms", "ms", "of those timed", [](auto& v) { return TimesOf(v).front(); });
  add("longest_iteration_ms", "ms", "of those timed", [](auto& v) { return TimesOf(v).back(); });
  add("timed_iterations", "1", "their number", [](auto& v) { return TimesOf(v).size(); });
  columns.push_back({"preset", "", "how memory is counted", &R::preset});
  columns.push_back({"device", "", "name of the GPU", &R::device});
  columns.push_back({"cost", "", "where kernel times come from", &R::cost});
  columns.push_back({"arithmetic", "", "the arithmetic of the matrix products for which they hold",
                     &R::arithmetic});
  columns.push_back({"reason", "",
                     "why the workload is predicted not to fit, or how the policy failed",
                     &R::Reason});
  columns.push_back({"network", "", "name of the network", &R::network});
  columns.push_back({"batch", "1", "samples per iteration", &R::batch});
  columns.push_back({"mode", "", "training or inference",
                     [](auto& r) { return r.training ? "training" : "inference"; }});
  columns.push_back({"memory_request", "", "--memory as given; absent if all of the device's",
                     [](auto& r) { return IfAny(r.memory_request); }});
  return columns;
}

std::vector<std::string_view> ShownOfValidations() {
  return {"workload",
          "policy",
          "memory_bytes",
          "status",
          "predicted_iteration_ms",
          "measured_iteration_ms",
          "error",
          "decisions_equal",
          "placements_equal",
          "violations",
          "predicted_compute_ms",
          "measured_compute_ms",
          "predicted_copy_ms",
          "measured_copy_ms",
          "predicted_stall_ms",
          "measured_stall_ms"};
}

std::vector<ValidatedCommand> CommandsOf(const Validation& validation) {
  const Trace& trace = *validation.predicted.trace;
  const auto& predicted = validation.predicted.report.timeline;
  const auto& measured = validation.measured.report.timeline;
  SPILLWAY_CHECK(predicted.size() == measured.size());
  std::vector<ValidatedCommand> commands(predicted.size());
  for (size_t i = 0; i < predicted.size(); ++i) {
    commands[i].predicted = predicted[i];
    commands[i].measured = measured[i];
    commands[i].op = trace.op(predicted[i].op).name;
    if (predicted[i].tensor != kNoTensor) {
      commands[i].tensor = trace.tensor(predicted[i].tensor).name;
    }
  }
  return commands;
}

Columns<ValidatedCommand> CommandColumns() {
  using Command = ValidatedCommand;
  return {
      {"workload", "", "as given", &Command::workload},
      {"policy", "", "as given", &Command::policy},
      {"memory", "", "as given", &Command::memory},
      {"op", "", "executed, or at which the copy was issued", &Command::op},
      {"kind", "", "kernel, prefetch or offload",
       [](auto& c) { return KindName(c.predicted.kind); }},
      {"tensor", "", "of a copy", &Command::tensor},
      {"recompute", "", "an op that runs again", [](auto& c) { return c.predicted.recompute; }},
      {"predicted_start_ms", "ms", "", [](auto& c) { return c.predicted.interval.start; }},
      {"measured_start_ms", "ms", "", [](auto& c) { return c.measured.interval.start; }},
      {"predicted_ms", "ms", "", [](auto& c) { return LengthOf(c.predicted.interval); }},
      {"measured_ms", "ms", "", [](auto& c) { return LengthOf(c.measured.interval); }},
      {"nominal_ms", "ms", "of the cost model", [](auto& c) { return c.predicted.nominal; }},
      {"issued_ms", "ms", "as measured", [](auto& c) { return c.measured.interval.issued; }},
  };
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

}  // namespace spillway::lab
