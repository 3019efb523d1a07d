#include "experiments/output/run_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "experiments/output/wrap.h"
#include "experiments/run/prepare.h"
#include "experiments/run/workload_text.h"
#include "policies/plan/bound.h"
#include "policies/recorded/saved_tensors.h"

namespace spillway::lab {
namespace {

// Each returns the part of a result that has members of the given type.
const RunResult& PartOf(const RunResult& result, const RunResult*) { return result; }
const Report& PartOf(const RunResult& result, const Report*) { return result.report; }
const Metrics& PartOf(const RunResult& result, const Metrics*) { return result.report.metrics; }
const Stalls& PartOf(const RunResult& result, const Stalls*) {
  return result.report.metrics.stalls;
}
const Bounds& PartOf(const RunResult& result, const Bounds*) { return result.report.bounds; }

// The following functions make getters that return a member's value for some runs, and nullopt for
// the others.
template <typename Part, typename T>
auto IfFits(T Part::*member) {
  return [member](const RunResult& result) {
    const Part& part = PartOf(result, static_cast<Part*>(nullptr));
    return result.fits() ? std::optional(std::invoke(member, part)) : std::nullopt;
  };
}

template <typename Part, typename T>
auto IfTimed(T Part::*member) {
  return [member](const RunResult& result) {
    return result.timed ? IfFits(member)(result) : std::nullopt;
  };
}

template <typename T>
auto IfCompressed(T CompressionSummary::*member) {
  return [member](const RunResult& result) {
    const auto& summary = result.compression;
    return summary ? std::optional(std::invoke(member, *summary)) : std::nullopt;
  };
}

auto Time(Duration CompressionTimes::*member) {
  return [member](const RunResult& result) {
    const bool known = result.timed && result.compression && result.compression->times;
    return known ? std::optional((*result.compression->times).*member) : std::nullopt;
  };
}

std::optional<double> Ratio(bool known, double numerator, double denominator) {
  return known && denominator > 0 ? std::optional(numerator / denominator) : std::nullopt;
}

std::optional<double> TimesOver(const RunResult& result, Duration reference) {
  return Ratio(result.fits() && result.timed, result.report.metrics.iteration.milliseconds(),
               reference.milliseconds());
}

std::optional<double> SamplesPerSecondOf(const RunResult& result) {
  return result.fits() && result.timed ? SamplesPerSecond(result.batch, result.iteration)
                                       : std::nullopt;
}

struct Offloaded {
  std::string_view tensor;
  const OffloadedStorage* storage;
};

Nested OffloadedStorages(const RunResult& result) {
  const Columns<Offloaded> columns{
      {"tensor", "", "", [](auto& row) { return row.tensor; }},
      {"bytes", "B", "", [](auto& row) { return row.storage->size; }},
      {"density", "1", "", [](auto& row) { return row.storage->density; }},
      {"compressed", "", "", [](auto& row) { return row.storage->compressed; }},
      {"compressed_bytes", "B", "", [](auto& row) { return row.storage->held; }},
  };
  std::vector<Offloaded> rows;
  for (size_t i = 0; i < result.offloaded.size(); ++i) {
    rows.push_back({result.offloaded[i], &result.compression->offloaded[i]});
  }
  return NestRows(columns, rows);
}

// Returns the columns of runs with --compress.
Columns<RunResult> CompressionColumns() {
  using Summary = CompressionSummary;
  return {
      {"compressed_storages", "1", "tensors that the host keeps compressed",
       IfCompressed(&Summary::storages), "compressed"},
      {"staging_bytes", "B", "bytes of the pinned buffers through which copies go",
       IfCompressed(&Summary::staging)},
      {"pageable_peak_bytes", "B", "most compressed bytes at once",
       IfCompressed(&Summary::pageable_peak), "pageable GiB"},
      {"plain_pinned_peak_bytes", "B", "pinned_peak_bytes without compression",
       IfCompressed(&Summary::plain_peak), "was GiB"},
      {"saved_bytes", "B", "host memory that compression saves; negative if it costs some",
       IfCompressed(&Summary::saved), "saved GiB"},
      {"compress_ms", "ms", "time in which threads compressed", Time(&CompressionTimes::compress),
       "compress ms"},
      {"decompress_ms", "ms", "time in which threads decompressed",
       Time(&CompressionTimes::decompress), "decompress ms"},
      {"wait_staging_ms", "ms", "time in which copies to the host waited for a staging buffer",
       Time(&CompressionTimes::staging), "waits out"},
      {"wait_contents_ms", "ms",
       "time in which copies to the device waited for decompressed contents",
       Time(&CompressionTimes::contents), "waits in"},
      {"plain_iteration_ms", "ms", "iteration_ms without compression",
       [](auto& r) { return r.timed && r.compression ? r.compression->baseline : std::nullopt; },
       "was ms"},
      {"compression_hides", "", "true if the iteration is as short as without compression",
       [](auto& r) { return r.compression ? r.compression->hides : std::nullopt; }, "hidden"},
      {"offloaded_storages", "", "each tensor that was on the host, only in JSON",
       OffloadedStorages},
  };
}

// Returns the columns of runs on devices that have a pool outside other than the host's.
Columns<RunResult> PoolColumns() {
  struct Part {
    const char* pool;
    const char* name;
    const char* help;
    const char* header;
    Bytes PoolUse::*part;
  };
  constexpr Part kParts[] = {
      {"peer", "peer_peak_bytes", "most bytes on the other GPU", "peer GiB", &PoolUse::peak},
      {"peer", "peer_offloaded_bytes", "bytes copied to the other GPU", "peer out GiB",
       &PoolUse::offloaded},
      {"peer", "peer_prefetched_bytes", "bytes copied from the other GPU", "peer in GiB",
       &PoolUse::prefetched},
      {"remote", "remote_peak_bytes", "most bytes on the other machine", "remote GiB",
       &PoolUse::peak},
      {"remote", "remote_offloaded_bytes", "bytes copied to the other machine", "remote out GiB",
       &PoolUse::offloaded},
      {"remote", "remote_prefetched_bytes", "bytes copied from the other machine", "remote in GiB",
       &PoolUse::prefetched},
      {"nvme", "nvme_peak_bytes", "most bytes on the disk", "nvme GiB", &PoolUse::peak},
      {"nvme", "nvme_offloaded_bytes", "bytes copied to the disk", "nvme out GiB",
       &PoolUse::offloaded},
      {"nvme", "nvme_prefetched_bytes", "bytes copied from the disk", "nvme in GiB",
       &PoolUse::prefetched},
  };
  Columns<RunResult> columns;
  for (const Part& part : kParts) {
    const auto number = [pool = part.pool](const RunResult& result) {
      const auto& pools = result.report.pools;
      return static_cast<size_t>(std::ranges::find(pools, pool) - pools.begin());
    };
    const auto get = [number, part](const RunResult& result) -> std::optional<Bytes> {
      const size_t i = number(result);
      if (!result.fits() || i == result.report.pools.size()) return std::nullopt;
      return result.report.metrics.pools[i].*part.part;
    };
    Column<RunResult> column{part.name, "B", part.help, get, part.header};
    column.present = [number](const RunResult& result) {
      return number(result) < result.report.pools.size();
    };
    columns.push_back(std::move(column));
  }
  return columns;
}

// Returns the columns of runs with --backend cpu or cuda.
Columns<RunResult> ExecutionColumns() {
  return {
      {"loss", "1", "the loss of the last iteration", &RunResult::loss},
      {"weights_digest", "", "SHA-256 over parameters and optimizer state after the last iteration",
       [](auto& r) { return IfAny(r.weights_digest); }},
      {"against", "", "another policy, which was executed in all of the device's memory",
       [](auto& r) { return IfAny(r.against); }},
      {"same_bits", "", "true if the other policy gives the same loss and weights",
       &RunResult::same_bits},
  };
}

// Returns the bound of the joint problem, or nullopt if its assumptions do not hold for the run.
std::optional<Duration> BoundOf(const Case& asked, const Inputs& inputs, const Outcome& outcome) {
  const Report& report = outcome.report;
  const Trace& trace = *outcome.trace;
  const bool holds =
      report.fits() && !asked.compress && JointBoundHolds(trace, inputs.device().alignment, report);
  if (!holds) return std::nullopt;
  // Blocks that were placed ahead may lie higher than the memory that they were planned for.
  const Bytes memory = std::max(inputs.MemoryOf(asked), report.metrics.peak_reserved);
  return outcome.trace == inputs.trace() && memory == inputs.MemoryOf(asked)
             ? inputs.JointBoundIn(memory)
             : JointBound(trace, *inputs.cost(), memory);
}

}  // namespace

bool IsHostBound(const Metrics& metrics) {
  return metrics.host > Duration() && metrics.host * 10 >= metrics.iteration * 8;
}

bool LacksLinks(const Device& device, const Trace& trace) {
  return !device.cluster && std::ranges::any_of(trace.ops, &Op::IsCollective);
}

std::string FormatHost(std::string_view whose, std::span<const HostPart> parts, size_t width) {
  std::vector<std::string> bound, ranges, waits;
  std::set<std::string> untimed;
  for (const HostPart& part : parts) {
    const std::string& name = part.policy.empty() ? part.device : part.policy;
    if (IsHostBound(part.metrics)) bound.push_back(name);
    const char* const where = part.policy.empty() ? "on" : "under";
    if (part.range) {
      ranges.push_back(fmt::format("{} to {} {} {}", FormatDuration(part.range->fastest),
                                   FormatDuration(part.range->slowest), where, name));
    }
    if (part.lacks_links) untimed.insert(part.device);
    if (part.metrics.communication == Duration()) continue;
    waits.push_back(fmt::format("{} {} {}, {} of them while nothing else runs",
                                FormatDuration(part.metrics.communication), where, name,
                                FormatDuration(part.metrics.exposed)));
  }
  std::string text;
  if (!waits.empty()) {
    text += fmt::format("The collectives of {} take {}.\n", whose, fmt::join(waits, "; "));
  }
  if (!untimed.empty()) {
    text += fmt::format(
        "Collectives are not timed on {}, whose device file has no [cluster]: {} takes longer by "
        "the communication for which it waits.\n",
        fmt::join(untimed, ", "), whose);
  }
  if (!bound.empty()) {
    text += fmt::format(
        "{} is host-bound {} {}: the host takes at least 80 % of the time to issue its commands.\n",
        whose, parts[0].policy.empty() ? "on" : "under", fmt::join(bound, ", "));
  }
  if (!ranges.empty()) {
    text += fmt::format(
        "The host's speed is not known: with {} to {} for an operator, as on the fastest and the "
        "slowest host that was measured, {} takes {}. python3 -m spillway_torch calibrate-host "
        "measures yours.\n",
        FormatDuration(kFastestHost), FormatDuration(kSlowestHost), whose, fmt::join(ranges, ", "));
  }
  return Wrapped(text, width);
}

std::optional<double> SamplesPerSecond(int64_t batch, Duration iteration) {
  return Ratio(true, static_cast<double>(batch), iteration.seconds());
}

RowCase::RowCase(const Case& asked, const Inputs& inputs, const Trace& trace)
    : workload(trace.name),
      network(trace.network),
      preset(trace.preset),
      batch(trace.batch),
      training(trace.training),
      device(inputs.device().name),
      memory(inputs.MemoryOf(asked)),
      memory_request(asked.memory ? asked.memory->text() : std::string()),
      cost(inputs.cost()->Provenance()),
      arithmetic(inputs.cost()->ArithmeticFor(trace)),
      attention(WorkloadOptionOf("attention").get(asked)),
      optimizer(WorkloadOptionOf("optimizer").get(asked)),
      precision(WorkloadOptionOf("precision").get(asked)),
      accumulate(WorkloadOptionOf("accumulate").get(asked)),
      clip_norm(WorkloadOptionOf("clip-norm").get(asked)),
      loss_chunks(WorkloadOptionOf("loss-chunks").get(asked)),
      file(IsTraceFile(asked.workload) ? asked.workload : std::string()),
      policy(asked.policy.name()) {}

namespace {

Bytes Lacking(const OutOfMemory& request) {
  return std::max(Bytes(), request.wanted - request.stats.largest_free);
}

}  // namespace

std::optional<Bytes> MissingOf(const RunResult& result) {
  const std::optional<OutOfMemory>& request = result.report.out_of_memory;
  if (!request) return std::nullopt;
  if (result.needed) return *result.needed - result.memory;
  const Bytes lacking = Lacking(*request);
  return request->op_name == OutOfMemory::kBeforeOps
             ? std::max(lacking, result.floor - result.memory)
             : lacking;
}

void FindNeed(const Case& asked, const Inputs& inputs, RunResult& result) {
  const std::optional<OutOfMemory>& request = result.report.out_of_memory;
  if (!request || request->pool != PoolId::kDevice) return;
  try {
    result.needed = FindNeededMemory(asked, inputs, Lacking(*request));
  } catch (const Error&) {  // the policy fails in more memory
  }
}

std::string Brief(const OutOfMemory& request) {
  const Bytes wanted = request.wanted, free = request.stats.largest_free;
  return fmt::format(
      "{}: {} needs {}, finds {}{}", request.op_name, request.what, FormatBytes(wanted, free),
      FormatBytes(free, wanted),
      request.pool == PoolId::kDevice ? "" : fmt::format(" of {}", Name(request.pool)));
}

Standing StandingOfResult(const RunResult& result) {
  Standing standing;
  standing.failed = !result.failure.empty();
  standing.missing = MissingOf(result);
  if (result.fits() && result.timed) standing.score = result.iteration.milliseconds();
  return standing;
}

RunResult ResultOf(const Case& asked, const Inputs& inputs, const Outcome& outcome,
                   Certificate certificate) {
  const Report& ideal = inputs.IdealOf(asked);
  const Trace& trace = *outcome.trace;
  const Report& report = outcome.report;
  RunResult result;
  static_cast<RowCase&>(result) = RowCase(asked, inputs, trace);
  result.lacks_links = LacksLinks(inputs.device(), trace);
  result.allocator = outcome.allocator;
  result.backend = asked.backend;
  result.report.pools = report.pools;
  result.report.out_of_memory = report.out_of_memory;
  result.report.metrics = report.metrics;
  result.report.metrics.offloaded += CopiedByOps(trace, Direction::kToHost);
  result.report.metrics.prefetched += CopiedByOps(trace, Direction::kToDevice);
  result.report.bounds = report.bounds;
  result.report.iterations = report.iterations;
  result.report.steady = report.steady;
  result.report.shortest = report.shortest;
  result.report.longest = report.longest;
  result.iteration = report.metrics.iteration;
  result.planned = !report.plan.empty();
  result.floor = ideal.bounds.layer;
  result.in_core_peak = ideal.metrics.peak_reserved;
  result.ideal = ideal.metrics.iteration;
  result.pinned_peak = report.metrics.pinned_peak;
  result.pinning = report.pinning;
  result.compresses = asked.compress.has_value();
  if (result.compresses && outcome.compression) {
    result.compression = outcome.compression;
    // Compressed storages are not pinned, so fewer bytes are pinned than the host pool holds.
    result.pinned_peak = outcome.compression->pinned_peak;
    result.pinning = inputs.device().host_malloc.At(result.pinned_peak);
    for (const OffloadedStorage& storage : outcome.compression->offloaded) {
      result.offloaded.push_back(trace.tensor(storage.storage).name);
    }
  }
  result.executed = asked.backend != kSimulator;
  if (!result.executed) {
    if (certificate == Certificate::kBound) result.bound_joint = BoundOf(asked, inputs, outcome);
    return result;
  }
  const Execution execution = outcome.execution.value_or(Execution());
  result.timed = !execution.iteration_times.empty();
  if (result.timed) result.iteration = execution.typical_iteration();
  result.loss = execution.loss;
  result.weights_digest = execution.weights_digest;
  return result;
}

RunResult RunForRow(const Case& asked, const Inputs& inputs,
                    const std::function<void(const Outcome&)>& look, Certificate certificate,
                    const BackendFactories& backends) {
  try {
    const Outcome outcome = RunCase(asked, inputs, backends);
    if (look) look(outcome);
    return ResultOf(asked, inputs, outcome, certificate);
  } catch (const Error& error) {
    Outcome nothing;
    nothing.trace = inputs.trace();
    nothing.allocator = asked.allocator.name();
    nothing.report.bounds.layer = inputs.IdealOf(asked).bounds.layer;
    RunResult result = ResultOf(asked, inputs, nothing);
    result.failure = error.what();
    return result;
  }
}

Columns<RunResult> ResultColumns() {
  Columns<RunResult> columns{
      {"workload", "", "network and batch, or the name in the trace file", &RunResult::workload},
      {"network", "", "name of the network", &RunResult::network},
      {"batch", "1", "samples per iteration", &RunResult::batch},
      {"device", "", "name of the GPU", &RunResult::device},
      {"memory_bytes", "B", "device memory that the run may use; absent if unlimited",
       [](auto& r) { return IfLimited(r.memory); }},
      {"policy", "", "as given", &RunResult::policy, "policy"},
      {"allocator", "", "the allocator that served the run: for auto, the allocator that it chose",
       &RunResult::allocator},
      {"backend", "", "sim, cpu or cuda", &RunResult::backend},
      {"status", "", "ok, oom if the workload does not fit, or failed if the policy broke down",
       [](auto& r) { return r.fits()            ? "ok"
                            : r.failure.empty() ? "oom"
                                                : "failed"; }, "status"},
      {"iteration_ms", "ms", "one iteration, until everything issued has completed",
       IfTimed(&RunResult::iteration), "time ms"},
      {"compute_ms", "ms", "time in which kernels ran", IfTimed(&Metrics::compute)},
      {"stall_ms", "ms", "time in which kernels waited, for any reason", IfTimed(&Stalls::total),
       "stall ms"},
      {"peak_requested_bytes", "B", "most bytes that were requested at once",
       IfFits(&Metrics::peak_requested)},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once, which includes rounding",
       IfFits(&Metrics::peak_allocated), "peak GiB"},
      {"peak_reserved_bytes", "B", "most bytes that the allocator held, which includes free blocks",
       IfFits(&Metrics::peak_reserved)},
      {"avg_requested_bytes", "B", "requested bytes, averaged over the iteration",
       IfTimed(&Metrics::average_requested)},
      {"offloaded_bytes", "B", "bytes copied to the host", IfFits(&Metrics::offloaded), "out GiB"},
      {"prefetched_bytes", "B", "bytes copied to the device", IfFits(&Metrics::prefetched),
       "in GiB"},
      {"recomputed_ops", "1", "number of ops that ran again", IfFits(&Metrics::recomputed_ops)},
      {"recompute_ms", "ms", "time of the ops that ran again", IfTimed(&Metrics::recompute)},
      {"pinned_peak_bytes", "B", "most pinned host memory", IfFits(&RunResult::pinned_peak),
       "pinned GiB"},
      {"slowdown", "1",
       "iteration over the iteration with unlimited memory and the fastest algorithms",
       [](auto& r) { return TimesOver(r, r.ideal); }, "slowdown"},
      {"stall_fetch_ms", "ms", "time in which kernels waited for an input that was not back yet",
       IfTimed(&Stalls::fetch), "fetch"},
      {"stall_fence_ms", "ms", "time in which kernels waited for copies at the end of a layer",
       IfTimed(&Stalls::fence), "fence"},
      {"stall_memory_ms", "ms", "time in which kernels waited for memory that a copy still read",
       IfTimed(&Stalls::memory), "memory"},
      {"stall_launch_ms", "ms", "time in which kernels waited until the host issued them",
       IfTimed(&Stalls::launch), "launch"},
      {"stall_lane_ms", "ms",
       "time in which kernels waited for another stream of the program, such as a collective's",
       IfTimed(&Stalls::lane)},
      {"communication_ms", "ms", "time of the collectives", IfTimed(&Metrics::communication)},
      {"exposed_ms", "ms",
       "the part of it in which the compute stream ran nothing else, with its waits for streams",
       IfTimed(&Metrics::exposed)},
      {"host_bound", "",
       "true if the host takes at least 80 % of the iteration to issue its commands",
       [](auto& r) { return When(r.fits() && r.timed, IsHostBound(r.report.metrics)); }},
      {"fastest_host_ms", "ms",
       "iteration_ms on the fastest host that was measured; absent unless the host's times are "
       "assumed, and in sweeps",
       [](auto& r) {
         return When(r.host_range.has_value(), r.host_range.value_or(HostRange()).fastest);
       }},
      {"slowest_host_ms", "ms", "on the slowest one",
       [](auto& r) {
         return When(r.host_range.has_value(), r.host_range.value_or(HostRange()).slowest);
       }},
      {"stall_drain_ms", "ms", "time of the last copies, after the last kernel",
       IfTimed(&Stalls::drain), "drain"},
      {"avg_allocated_bytes", "B", "bytes in blocks, averaged over the iteration",
       IfTimed(&Metrics::average_allocated), "avg GiB"},
      {"avg_reserved_bytes", "B", "bytes that the allocator held, averaged over the iteration",
       IfTimed(&Metrics::average_reserved)},
      {"fragmentation", "1", "1 - peak allocated / peak reserved", IfFits(&Metrics::fragmentation)},
      {"bound_compute_ms", "ms", "time of the chosen kernels, one directly after another",
       IfTimed(&Bounds::compute)},
      {"bound_copy_ms", "ms", "time of the copies alone", IfTimed(&Bounds::copy)},
      {"bound_layer_bytes", "B", "the least that any layer-wise policy needs",
       [](auto& r) { return r.report.bounds.layer; }},
      {"bound_joint_ms", "ms",
       "no policy that divides no batches and keeps parameters and state on the device is faster "
       "in this memory; absent in sweeps, because it takes longer to compute than a run",
       &RunResult::bound_joint},
      {"time_over_bound", "1", "iteration over the larger of the bounds of compute and copy",
       [](auto& r) {
         return TimesOver(r, std::max(r.report.bounds.compute, r.report.bounds.copy));
       },
       "x time bound"},
      {"memory_over_bound", "1", "peak allocated over the bound of a layer",
       [](auto& r) {
         return Ratio(r.fits(), static_cast<double>(r.report.metrics.peak_allocated.count()),
                      static_cast<double>(r.report.bounds.layer.count()));
       },
       "x memory bound"},
      {"iterations", "1", "number of iterations until two agreed", IfFits(&Report::iterations)},
      {"steady", "", "true if the last two iterations agreed in decisions, placements and time",
       IfFits(&Report::steady)},
      {"shortest_iteration_ms", "ms", "time of the shortest iteration", IfTimed(&Report::shortest)},
      {"longest_iteration_ms", "ms", "time of the longest iteration", IfTimed(&Report::longest)},
      {"pinning_ms", "ms", "time to pin the host memory, once before the first iteration",
       IfTimed(&RunResult::pinning)},
      {"preset", "", "the preset that counts memory", &RunResult::preset},
      {"mode", "", "training or inference",
       [](auto& r) { return r.training ? "training" : "inference"; }},
      {"cost", "", "where kernel times come from", &RunResult::cost},
      {"arithmetic", "",
       "the arithmetic of the matrix products for which the times hold: fp32, tf32, bf16, fp16, "
       "fp8",
       &RunResult::arithmetic},
      {"reason", "", "why the workload does not fit, or how the policy failed",
       [](auto& r) { return IfAny(r.fits() ? "" : r.Reason()); }},
      {"missing_bytes", "B",
       "how much more memory is enough, which run and compare search for; in sweeps at least how "
       "much more it takes; absent if there is enough",
       MissingOf},
      {"memory_request", "", "the text of --memory; absent if the run has all memory of the device",
       [](auto& r) { return IfAny(r.memory_request); }},
      {"memory_floor_bytes", "B",
       "0% of --memory: the parameters and the most bytes that one op needs", &RunResult::floor},
      {"in_core_peak_bytes", "B", "100% of --memory: the memory of the run that moves nothing",
       &RunResult::in_core_peak},
      {"samples_per_second", "1/s", "batch over iteration_ms", SamplesPerSecondOf, "samples/s"},
  };
  const auto append = [&](Columns<RunResult> others, bool RunResult::*present) {
    for (Column<RunResult>& column : others) {
      column.present = [present](const RunResult& result) { return result.*present; };
      columns.push_back(std::move(column));
    }
  };
  for (const auto& [name, help, text] :
       {std::tuple("attention", "the option attention of the workload", &RowCase::attention),
        std::tuple("optimizer", "the option optimizer of the workload", &RowCase::optimizer),
        std::tuple("precision", "the option precision of the workload", &RowCase::precision),
        std::tuple("accumulate", "the option accumulate of the workload", &RowCase::accumulate),
        std::tuple("clip_norm", "the option clip-norm of the workload", &RowCase::clip_norm),
        std::tuple("loss_chunks", "the option loss-chunks of the workload", &RowCase::loss_chunks),
        std::tuple("file", "the trace file of the workload, as given", &RowCase::file)}) {
    Column<RunResult> column{name, "", help, text};
    column.present = [text](const RunResult& result) { return !(result.*text).empty(); };
    columns.push_back(std::move(column));
  }
  append(CompressionColumns(), &RunResult::compresses);
  append(ExecutionColumns(), &RunResult::executed);
  for (Column<RunResult>& column : PoolColumns()) columns.push_back(std::move(column));
  return columns;
}

std::string FormatComparison(std::span<const RunResult> results, size_t width) {
  constexpr std::string_view kShown[] = {"policy",
                                         "best",
                                         "fits",
                                         "iteration_ms",
                                         "slowdown",
                                         "peak_allocated_bytes",
                                         "avg_allocated_bytes",
                                         "offloaded_bytes",
                                         "prefetched_bytes",
                                         "stall_ms",
                                         "stall_fetch_ms",
                                         "stall_fence_ms",
                                         "stall_memory_ms",
                                         "stall_launch_ms",
                                         "stall_drain_ms",
                                         "time_over_bound",
                                         "memory_over_bound"};
  return FormatRanked<RunResult>(ResultColumns(), kShown, results, StandingOfResult, "the fastest",
                                 width);
}

std::string FormatPools(std::span<const RunResult> results, size_t width) {
  std::vector<std::string_view> shown{"policy", "pinned_peak_bytes"};
  const Columns<RunResult> columns = PoolColumns();
  std::vector<RunResult> fitting;
  for (const RunResult& result : results) {
    if (result.fits() && result.report.pools.size() > 1) fitting.push_back(result);
  }
  if (fitting.empty()) return {};
  for (const Column<RunResult>& column : columns) {
    if (column.present(fitting.front())) shown.push_back(column.name);
  }
  return FormatTable(ResultColumns(), shown, fitting, width);
}

std::string FormatCompression(std::span<const RunResult> results, size_t width) {
  constexpr std::string_view kShown[] = {"policy",
                                         "compressed_storages",
                                         "pinned_peak_bytes",
                                         "plain_pinned_peak_bytes",
                                         "pageable_peak_bytes",
                                         "saved_bytes",
                                         "compress_ms",
                                         "decompress_ms",
                                         "wait_staging_ms",
                                         "wait_contents_ms",
                                         "plain_iteration_ms",
                                         "compression_hides"};
  std::vector<RunResult> compressing;
  std::copy_if(results.begin(), results.end(), std::back_inserter(compressing),
               [](const RunResult& result) { return result.fits() && result.compresses; });
  if (compressing.empty()) return {};
  return FormatTable(ResultColumns(), kShown, compressing, width);
}

}  // namespace spillway::lab
