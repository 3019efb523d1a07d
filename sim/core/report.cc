#include "sim/core/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::sim {
namespace {

// The bytes in use in one arena, computed from the placement log.
class Usage {
 public:
  void Apply(const Placement& placement) {
    reserved_ = placement.reserved;
    if (placement.kind == PlacementKind::kAllocate) {
      requested_ += placement.requested;
      allocated_ += placement.block.size;
    } else if (placement.kind == PlacementKind::kFree) {
      requested_ -= placement.requested;
      allocated_ -= placement.block.size;
    }
    peak_requested_ = std::max(peak_requested_, requested_);
    peak_allocated_ = std::max(peak_allocated_, allocated_);
    peak_reserved_ = std::max(peak_reserved_, reserved_);
  }

  Bytes requested() const { return requested_; }
  Bytes allocated() const { return allocated_; }
  Bytes reserved() const { return reserved_; }
  Bytes peak_requested() const { return peak_requested_; }
  Bytes peak_allocated() const { return peak_allocated_; }
  Bytes peak_reserved() const { return peak_reserved_; }

 private:
  Bytes requested_, allocated_, reserved_;
  Bytes peak_requested_, peak_allocated_, peak_reserved_;
};

// The time-weighted sum of a byte count.
class Average {
 public:
  void Add(Bytes value, Duration time) {
    sum_ += static_cast<Int128>(value.count()) * time.picoseconds();
  }
  Bytes Over(Duration total) const {
    if (total <= Duration()) return Bytes(0);
    return Bytes(static_cast<int64_t>(sum_ / total.picoseconds()));
  }

 private:
  Int128 sum_ = 0;
};

Duration& StallOf(Stalls& stalls, WaitCause cause) {
  switch (cause) {
    case WaitCause::kFetch:
      return stalls.fetch;
    case WaitCause::kFence:
      return stalls.fence;
    default:
      return stalls.memory;
  }
}

// Adds the time in which the compute stream waited for `entry`, idle since `idle_from`, to the
// cause that ended last. Of causes that ended at the same time, the launch counts first, then the
// earlier logged wait.
void AddStall(const Report& report, const TimelineEntry& entry, Duration idle_from,
              const std::array<std::vector<const TimelineEntry*>, kStreamCount>& by_stream,
              Stalls& stalls) {
  const Duration stall = entry.interval.start - idle_from;
  if (stall <= Duration()) return;
  Duration latest = entry.interval.issued;
  Duration* cause = &stalls.launch;
  for (uint32_t i = 0; i < entry.wait_count; ++i) {
    const Wait& wait = report.waits[entry.first_wait + i];
    const Duration end = by_stream[Index(wait.event.stream)][wait.event.sequence - 1]->interval.end;
    if (end > latest) {
      latest = end;
      cause = IsLane(wait.event.stream) ? &stalls.lane : &StallOf(stalls, wait.cause);
    }
  }
  *cause += stall;
}

}  // namespace

std::string_view Name(Verb verb) {
  constexpr std::array<std::string_view, 10> kNames{
      "offload", "release",           "prefetch", "evict",     "fence",
      "reserve", "reserve_workspace", "fetch",    "recompute", "run"};
  return kNames[static_cast<size_t>(verb)];
}

std::string_view Name(Refusal refusal) {
  constexpr std::array<std::string_view, 4> kNames{"none", "pinned", "full", "unknown"};
  return kNames[static_cast<size_t>(refusal)];
}

std::string_view Name(PoolId pool) {
  constexpr std::array<std::string_view, 1 + kMaxPools> kNames{"device", "pinned host", "pool 2",
                                                               "pool 3"};
  return kNames[static_cast<size_t>(pool)];
}

std::string OutOfMemory::Message() const {
  std::string text = fmt::format(
      "out of {} memory at step {} ({}): {} needs {} ({} bytes), the largest free block is {}; "
      "{} "
      "of {} are allocated",
      Name(pool), Index(op), op_name, what, FormatBytes(wanted, stats.largest_free), wanted.count(),
      FormatBytes(stats.largest_free, wanted), FormatBytes(stats.allocated, capacity),
      FormatBytes(capacity, stats.allocated));
  if (holders.empty()) return text;
  text += ". Largest holders:";
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, holders.size()); ++i) {
    text +=
        fmt::format("{} {} {}", i == 0 ? "" : ",", holders[i].name, FormatBytes(holders[i].size));
  }
  if (holders.size() > kShown) text += fmt::format(" and {} more", holders.size() - kShown);
  return text;
}

double Metrics::fragmentation() const {
  if (peak_reserved <= Bytes(0)) return 0;
  return 1.0 -
         static_cast<double>(peak_allocated.count()) / static_cast<double>(peak_reserved.count());
}

Bytes MemoryAt(double percent, Bytes floor, Bytes peak, Bytes alignment) {
  const double extra = static_cast<double>((peak - floor).count()) * percent / 100;
  return RoundUp(floor + Bytes(static_cast<int64_t>(extra)), alignment);
}

Bytes LayerBound(const Trace& trace, Bytes alignment) {
  return LayerBound(trace, Liveness(trace), alignment);
}

Bytes LayerBound(const Trace& trace, const Liveness& liveness, Bytes alignment,
                 const std::function<bool(TensorId)>& outside) {
  const auto persists = [&](TensorId storage) {
    const TensorKind kind = trace.tensor(storage).kind;
    return (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState) &&
           !(outside && outside(storage));
  };
  const auto rounded = [&](TensorId storage) {
    return RoundUp(trace.tensor(storage).size, alignment);
  };
  Bytes persistent;
  const std::vector<bool> wholes = trace.Wholes();
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (liveness.Root(id) == id && persists(id) && !wholes[i]) persistent += rounded(id);
  }
  Bytes largest;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    Bytes used;
    for (const TensorId storage : liveness.Storages(static_cast<OpId>(i))) {
      if (!persists(storage)) used += rounded(storage);
    }
    largest = std::max(largest, used);
  }
  return persistent + largest;
}

Metrics ComputeMetrics(const Report& report) {
  SPILLWAY_CHECK(report.fits());
  Metrics metrics;
  std::array<std::vector<const TimelineEntry*>, kStreamCount> by_stream;
  for (const TimelineEntry& entry : report.timeline) {
    by_stream[Index(entry.event.stream)].push_back(&entry);
    metrics.iteration = std::max(metrics.iteration, entry.interval.end);
    metrics.host = std::max(metrics.host, entry.interval.issued);
  }

  Usage device;
  std::array<Usage, kMaxPools> outside;
  Average requested, allocated, reserved;
  size_t next_placement = 0;
  const auto apply_until = [&](size_t commands) {
    for (; next_placement < report.placements.size() &&
           report.placements[next_placement].commands <= commands;
         ++next_placement) {
      const Placement& placement = report.placements[next_placement];
      (placement.on_device() ? device : outside[NumberOf(placement.pool)]).Apply(placement);
    }
  };

  Duration idle_from;      // end of the last kernel
  Duration counted_until;  // the averages cover the time before this
  const auto& kernels = by_stream[Index(Stream::kCompute)];
  size_t next_kernel = 0;
  for (size_t i = 0; i < report.timeline.size(); ++i) {
    const TimelineEntry& entry = report.timeline[i];
    apply_until(i);
    if (entry.kind != CommandKind::kKernel) {
      PoolUse& pool = metrics.pools[NumberOf(PoolOf(entry.event.stream))];
      (entry.kind == CommandKind::kToHost ? pool.offloaded : pool.prefetched) += entry.size;
      continue;
    }
    const Duration busy = entry.interval.end - entry.interval.start;
    if (entry.collective) metrics.communication += busy;
    if (IsLane(entry.event.stream)) continue;
    if (entry.collective) metrics.exposed += busy;
    metrics.compute += busy;
    if (entry.recompute) {
      metrics.recompute += busy;
      ++metrics.recomputed_ops;
    }
    AddStall(report, entry, idle_from, by_stream, metrics.stalls);
    idle_from = entry.interval.end;

    ++next_kernel;
    const Duration until =
        next_kernel < kernels.size() ? kernels[next_kernel]->interval.start : metrics.iteration;
    requested.Add(device.requested(), until - counted_until);
    allocated.Add(device.allocated(), until - counted_until);
    reserved.Add(device.reserved(), until - counted_until);
    counted_until = until;
  }
  apply_until(report.timeline.size());
  metrics.stalls.drain = metrics.iteration - idle_from;
  metrics.exposed += metrics.stalls.lane;

  metrics.peak_requested = device.peak_requested();
  metrics.peak_allocated = device.peak_allocated();
  metrics.peak_reserved = device.peak_reserved();
  for (size_t i = 0; i < kMaxPools; ++i) {
    metrics.pools[i].peak = outside[i].peak_allocated();
    metrics.offloaded += metrics.pools[i].offloaded;
    metrics.prefetched += metrics.pools[i].prefetched;
  }
  metrics.pinned_peak = metrics.pools[NumberOf(PoolId::kHost)].peak;
  metrics.average_requested = requested.Over(metrics.iteration);
  metrics.average_allocated = allocated.Over(metrics.iteration);
  metrics.average_reserved = reserved.Over(metrics.iteration);
  return metrics;
}

}  // namespace spillway::sim
