#include "experiments/tools/replay/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "traces/base/csv.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

constexpr size_t kShownHolders = 10;

std::optional<uint64_t> EventOf(const ReplayResult& result) {
  if (result.fits() || result.failure->at_start) return std::nullopt;
  return result.failure->event;
}

std::optional<double> OperationsPerSecond(const ReplayResult& result) {
  if (result.nanoseconds.value_or(0) <= 0) return std::nullopt;
  return static_cast<double>(result.operations) * 1e9 / static_cast<double>(*result.nanoseconds);
}

std::optional<double> OverBound(const ReplayResult& result, Bytes bound) {
  if (!result.fits() || bound <= Bytes(0)) return std::nullopt;
  return static_cast<double>(result.peak_reserved.count()) / static_cast<double>(bound.count());
}

// Returns the reason why a replay has no verdict on what was recorded, or nullopt if it has one.
std::optional<std::string> NotCompared(const ReplayResult& result, const LogSummary& summary) {
  if (result.as_recorded()) return std::nullopt;
  if (result.compared) return "the log is not served to its end";
  if (!summary.recorded_peak_reserved) return "the log does not tell which segments there were";
  if (result.allocator == "pytorch") return "the recorded memory limit is not known";
  return "only pytorch without parameters has the recorded settings";
}

// Returns lines on the recorded settings: those that are assumed, and those that no allocator has.
std::string FormatSettings(const MemoryLog& log) {
  if (log.Format() != "pytorch") return "";
  if (!log.start().pytorch) return "settings are not recorded: PyTorch's defaults are assumed\n";
  const auto& settings = log.start().pytorch->not_modelled;
  if (settings.empty()) return "";
  return fmt::format("settings that are not modelled: {}\n", fmt::join(settings, ", "));
}

std::optional<Bytes> ToSpare(const ReplayResult& result) {
  if (!result.fits() || !result.memory) return std::nullopt;
  return *result.memory - result.peak_reserved;
}

// Returns the bytes of `memory` that are free when the request fails.
Bytes Free(const FailedRequest& failure, Bytes memory) { return memory - failure.stats.allocated; }

std::string Place(const FailedRequest& failure) {
  return failure.at_start ? "at the start of the log" : fmt::format("at event {}", failure.event);
}

// Return the texts of two columns for people.
std::string StatusOf(const ReplayResult& result) {
  if (!result.fits()) return "oom " + Place(*result.failure);
  const auto spare = ToSpare(result);
  return spare ? fmt::format("fits, {} to spare", FormatBytes(*spare)) : "ok";
}
std::string AsRecorded(const ReplayResult& result) {
  if (result.deviates_at) return fmt::format("until event {}", *result.deviates_at);
  return result.as_recorded() == true ? "yes" : "";
}

std::string Percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

// Returns the description of the block or request of an event, or nullopt if the log has none.
std::optional<std::string> NameOrNull(const MemoryLog& log, uint64_t event) {
  return IfAny(log.Describe(event));
}

// Returns the table for people of a log with a failure that was analysed.
std::string FormatFailureTable(const Replayed& replayed, const FailureAnalysis& failure) {
  const auto text = [](Bytes size) {
    return size < Bytes::MiB(100'000) ? fmt::format("{:.0f} MiB", size.mib())
                                      : fmt::format("{:.1f} GiB", size.mib() / 1024);
  };
  std::vector<std::vector<std::string>> cells{{"allocator", "status", "reserved", "needed"}};
  for (const ReplayResult& result : replayed.results) {
    const auto needed = failure.NeededBy(result.allocator);
    cells.push_back({result.allocator, StatusOf(result), text(result.peak_reserved),
                     needed ? text(*needed) : ""});
  }
  return FormatTable(std::move(cells));
}

Columns<FailedRequest::Holder> HolderColumns(const MemoryLog& log) {
  using Holder = FailedRequest::Holder;
  const auto if_later = [](auto get) {
    return [get](const Holder& holder) {
      return holder.from_start == holder.blocks ? std::nullopt : std::optional(get(holder));
    };
  };
  return {
      {"size_bytes", "B", "of each block, as requested", &Holder::size},
      {"blocks", "1", "of this size", &Holder::blocks},
      {"from_start", "1", "of these, live before the first event", &Holder::from_start},
      {"first_event", "1", "that allocated one of the others",
       if_later(std::mem_fn(&Holder::first_event))},
      {"last_event", "1", "that did", if_later(std::mem_fn(&Holder::last_event))},
      {"last", "", "what is known of that one",
       [=, &log](const Holder& holder) {
         return holder.from_start == holder.blocks ? std::nullopt
                                                   : NameOrNull(log, holder.last_event);
       }},
  };
}

}  // namespace

Columns<ReplayResult> ReplayColumns(const Replayed& replayed, const FailureAnalysis* failure) {
  const LogSummary& summary = replayed.summary;
  const HolderGroup* const holder =
      failure == nullptr || failure->groups.empty() ? nullptr : &failure->groups.front();
  const Bytes bound = replayed.summary.lower_bound;
  return {
      {"allocator", "", "as given", &ReplayResult::allocator},
      {"status", "", "ok, or oom if a request could not be served",
       [](auto& r) { return r.fits() ? "ok" : "oom"; }},
      {"peak_requested_bytes", "B", "most bytes asked for at once, until a failure",
       &ReplayResult::peak_requested},
      {"peak_allocated_bytes", "B", "most bytes in blocks at once, likewise",
       &ReplayResult::peak_allocated},
      {"peak_reserved_bytes", "B", "most bytes held, free blocks included, likewise",
       &ReplayResult::peak_reserved},
      {"lower_bound_bytes", "B", "what any allocator needs", [=](auto&) { return bound; }},
      {"failed_event", "1", "of the request that could not be served", EventOf},
      {"operations_per_second", "1/s", "allocations and releases", OperationsPerSecond},
      {"fragmentation", "1", "1 - peak allocated / peak reserved", &ReplayResult::fragmentation},
      {"over_lower_bound", "1", "peak reserved over the lower bound",
       [=](auto& r) { return OverBound(r, bound); }},
      {"largest_free_bytes", "B", "at the failure, else at the last sample; absent if unlimited",
       [](auto& r) -> std::optional<Bytes> {
         if (!r.fits()) return r.failure->stats.largest_free;
         if (r.samples.empty()) return std::nullopt;
         return r.samples.back().largest_free;
       }},
      {"as_recorded", "", "it took from the driver what was recorded", &ReplayResult::as_recorded},
      {"deviates_at", "1", "the first event at which it did not", &ReplayResult::deviates_at},
      {"not_compared", "", "the reason, if as_recorded is not known",
       [summary = replayed.summary](auto& r) { return NotCompared(r, summary); }},
      {"memory_bytes", "B", "of the allocator; absent if unlimited", &ReplayResult::memory},
      {"to_spare_bytes", "B", "of the memory, if all requests were served", ToSpare},
      {"wanted_bytes", "B", "by the request that could not be served",
       [](auto& r) { return r.fits() ? std::nullopt : std::optional(r.failure->wanted); }},
      {"recorded_failed_event", "1", "of the last request that failed when the log was recorded",
       [=](auto&) { return summary.failed_event; }},
      {"recorded_wanted_bytes", "B", "by that request",
       [=](auto&) { return When(summary.failed_event.has_value(), summary.failed_size); }},
      {"serves_in_bytes", "B", "a memory in which the log with that request is served",
       [=](auto& r) { return failure ? failure->NeededBy(r.allocator) : std::nullopt; }},
      {"largest_holder", "", "the code that held the most when that request failed",
       [=](auto&) { return holder ? std::optional(NameOf(*holder)) : std::nullopt; }},
      {"largest_holder_bytes", "B", "held by it",
       [=](auto&) { return holder ? std::optional(holder->size) : std::nullopt; }},
      {"remedy", "", "the cheapest that a replay has verified",
       [=](auto&) {
         return failure == nullptr || failure->remedies.empty()
                    ? std::nullopt
                    : std::optional(failure->remedies.front().text);
       }},
  };
}

std::string FormatReplayJson(const MemoryLog& log, const Replayed& replayed,
                             const std::optional<std::vector<Remedy>>& remedies,
                             const FailureAnalysis* failure) {
  const LogSummary& summary = replayed.summary;
  JsonWriter json(3);
  json.BeginObject().Put("schema", "spillway.replay/v1");
  json.Key("log").BeginObject().Put("format", log.Format()).Put("events", summary.events);
  json.Put("records", summary.records);
  json.Put("allocations", summary.allocations).Put("start_blocks", log.start().blocks.size());
  json.Put("peak_blocks", summary.peak_blocks);
  json.Put("peak_requested_bytes", summary.peak_requested);
  json.Put("unit_bytes", summary.unit).Put("lower_bound_bytes", summary.lower_bound);
  json.Put("recorded_peak_reserved_bytes", summary.recorded_peak_reserved);
  json.Put("records_settings", log.start().pytorch.has_value());
  json.Key("settings_not_modelled").BeginArray();
  if (log.start().pytorch) {
    for (const std::string& setting : log.start().pytorch->not_modelled) json.Put(setting);
  }
  json.EndArray().EndObject();
  PutRows(json.Key("rows"), ReplayColumns(replayed, failure), replayed.results);
  if (remedies) {
    json.Key("out_of_memory").BeginArray();
    for (const ReplayResult& result : replayed.results) {
      if (result.fits()) continue;
      const FailedRequest& request = *result.failure;
      json.BeginObject().Put("allocator", result.allocator).Put("event", EventOf(result));
      json.Put("wanted", request.at_start ? std::nullopt : NameOrNull(log, request.event));
      json.Put("wanted_bytes", request.wanted);
      json.Put("requested_bytes", request.stats.requested);
      json.Put("allocated_bytes", request.stats.allocated);
      json.Put("reserved_bytes", request.stats.reserved);
      json.Put("largest_free_bytes", request.stats.largest_free);
      PutRows(json.Key("holders"), HolderColumns(log), request.holders);
      for (const Remedy& remedy : *remedies) {
        if (remedy.allocator != result.allocator) continue;
        json.Key("would_fit_with").BeginArray();
        for (const std::string& other : remedy.others) json.Put(other);
        json.EndArray().Put("would_fit_in_bytes", remedy.memory);
        break;
      }
      json.EndObject();
    }
    json.EndArray();
  }
  if (failure != nullptr) PutFailure(json, *failure);
  return json.EndObject().Take();
}

std::string FormatReplayTable(const MemoryLog& log, const Replayed& replayed,
                              const FailureAnalysis* failure) {
  const LogSummary& summary = replayed.summary;
  std::string text = fmt::format(
      "{} log: {} events{}, {} blocks live at its start, at most {}", log.Format(), summary.events,
      summary.records == summary.events
          ? ""
          : fmt::format(" in {} records, which number them", summary.records),
      log.start().blocks.size(), summary.peak_blocks);
  if (failure != nullptr) {
    for (const ReplayResult& result : replayed.results) {
      const std::string recorded = AsRecorded(result);
      if (recorded.empty()) continue;
      text += fmt::format("; {} as recorded: {}", result.allocator, recorded);
    }
    text = Wrap(text + ".") + "\n";
    if (!failure->given) {
      text += fmt::format("memory: {:.0f} MiB, which the process certainly had (or --memory)\n",
                          failure->memory.mib());
    }
    return text + FormatSettings(log) + FormatFailureTable(replayed, *failure);
  }
  text += fmt::format("; at least {} are needed\n", FormatBytes(summary.lower_bound));
  text += fmt::format("sizes are rounded up to units of {} (--unit)\n", FormatBytes(summary.unit));
  if (summary.recorded_peak_reserved) {
    text += fmt::format("recorded: at most {} reserved\n",
                        FormatBytes(*summary.recorded_peak_reserved));
  }
  text += FormatSettings(log);
  const bool limited = std::ranges::any_of(
      replayed.results, [](const ReplayResult& result) { return result.memory.has_value(); });
  if (summary.failed_event && !limited) {
    text += "memory: unlimited, because the log does not say how much there was\n";
  }
  std::vector<std::vector<std::string>> cells{{"allocator", "status", "requested", "allocated",
                                               "reserved", "over bound", "lost", "Mop/s",
                                               "as recorded"}};
  std::set<std::string> reasons;
  for (const ReplayResult& result : replayed.results) {
    const auto over = OverBound(result, summary.lower_bound);
    const auto speed = OperationsPerSecond(result);
    std::string recorded = AsRecorded(result);
    if (const auto reason = NotCompared(result, summary)) {
      recorded = "-";
      reasons.insert(*reason);
    }
    cells.push_back({result.allocator, StatusOf(result), FormatBytes(result.peak_requested),
                     FormatBytes(result.peak_allocated), FormatBytes(result.peak_reserved),
                     over ? fmt::format("{:.3f}x", *over) : "", Percent(result.fragmentation()),
                     speed ? fmt::format("{:.1f}", *speed / 1e6) : "", recorded});
  }
  text += FormatTable(cells);
  for (const std::string& reason : reasons) text += fmt::format("as recorded -: {}\n", reason);
  const bool has_pytorch = std::ranges::any_of(
      replayed.results, [](const ReplayResult& r) { return r.allocator.starts_with("pytorch"); });
  if (has_pytorch && !summary.recorded_peak_reserved) {
    text +=
        "of free blocks of one size pytorch takes the one that lies lowest; the log does not say\n"
        "where segments lay, so that such ties are undetermined: here addresses ascend\n";
  }
  return text;
}

std::string FormatOutOfMemory(const MemoryLog& log, const Replayed& replayed,
                              const std::vector<Remedy>& remedies, Bytes memory) {
  std::string text;
  for (const ReplayResult& result : replayed.results) {
    if (result.fits()) continue;
    const FailedRequest& failure = *result.failure;
    const Bytes free = Free(failure, memory);
    text += fmt::format(
        "\n{}: out of memory {}: {} requested, the largest that would have fitted "
        "is {}\n",
        result.allocator, Place(failure), FormatBytes(failure.wanted),
        FormatBytes(failure.stats.largest_free));
    text += fmt::format("  of {}, {} are held (for {} requested) and {} are free: ",
                        FormatBytes(memory), FormatBytes(failure.stats.allocated),
                        FormatBytes(failure.stats.requested), FormatBytes(free));
    text += free >= failure.wanted ? "enough, but scattered\n"
                                   : fmt::format("{} too little, wherever they lie\n",
                                                 FormatBytes(failure.wanted - free));
    for (const Remedy& remedy : remedies) {
      if (remedy.allocator != result.allocator) continue;
      text += remedy.others.empty()
                  ? std::string("  no other allocator serves this log in the same memory\n")
                  : fmt::format("  serve this log in the same memory: {}\n",
                                fmt::join(remedy.others, ", "));
      text += remedy.memory ? fmt::format("  {} serves it in {} ({} B)\n", result.allocator,
                                          FormatBytes(*remedy.memory), remedy.memory->count())
                            : fmt::format("  {} serves it in no memory tried\n", result.allocator);
      break;
    }
    text += "  held by:\n";
    for (size_t i = 0; i < failure.holders.size() && i < kShownHolders; ++i) {
      const FailedRequest::Holder& holder = failure.holders[i];
      text +=
          fmt::format("    {:>10}  {} x {}",
                      FormatBytes(Bytes(holder.size.count() * static_cast<int64_t>(holder.blocks))),
                      holder.blocks, FormatBytes(holder.size));
      if (!holder.frame.empty()) text += ", " + holder.frame;
      if (holder.from_start == holder.blocks) {
        text += ", from before the log\n";
        continue;
      }
      text += holder.first_event == holder.last_event
                  ? fmt::format(", since event {}", holder.first_event)
                  : fmt::format(", since events {} to {}", holder.first_event, holder.last_event);
      const std::string name = log.Describe(holder.last_event);
      text += name.empty() ? "\n" : fmt::format(" (the last is {})\n", name);
    }
    if (failure.holders.size() > kShownHolders) {
      text +=
          fmt::format("    and blocks of {} other sizes\n", failure.holders.size() - kShownHolders);
    }
  }
  return text;
}

std::string FormatReplayCsv(const Replayed& replayed) {
  std::string text =
      "allocator,event,time_us,requested_bytes,allocated_bytes,reserved_bytes,largest_free_bytes,"
      "fragmentation\r\n";
  for (const ReplayResult& result : replayed.results) {
    const std::string name = CsvField(result.allocator);
    for (const ReplaySample& sample : result.samples) {
      const int64_t reserved = sample.reserved.count();
      const double lost = reserved == 0 ? 0
                                        : 1 - static_cast<double>(sample.allocated.count()) /
                                                  static_cast<double>(reserved);
      text += fmt::format("{},{},{},{},{},{},{},{:.6f}\r\n", name, sample.event, sample.time,
                          sample.requested.count(), sample.allocated.count(), reserved,
                          sample.largest_free ? fmt::to_string(sample.largest_free->count()) : "",
                          lost);
    }
  }
  return text;
}

std::string FormatReplayTrace(const Replayed& replayed, const ReplayTraceOrigin& origin) {
  JsonWriter json(2);
  json.BeginObject().Put("displayTimeUnit", "ns").Key("otherData").BeginObject();
  json.Put("tool", "spillway").Put("version", origin.version).Put("log", origin.log);
  json.Put("run_sha256", origin.run_sha256).EndObject();
  json.Key("traceEvents").BeginArray();
  struct Counter {
    int64_t time;
    int64_t process;
    const ReplaySample* sample;
  };
  std::vector<Counter> counters;
  for (const ReplayResult& result : replayed.results) {
    const int64_t process = &result - replayed.results.data() + 1;
    json.BeginObject().Put("ph", "M").Put("name", "process_name").Put("pid", process);
    json.Key("args").BeginObject().Put("name", result.allocator).EndObject().EndObject();
    for (const ReplaySample& sample : result.samples) {
      counters.push_back({sample.time, process, &sample});
    }
  }
  std::stable_sort(counters.begin(), counters.end(),
                   [](const Counter& a, const Counter& b) { return a.time < b.time; });
  for (const auto& [time, process, sample] : counters) {
    json.BeginObject().Put("ph", "C").Put("name", "device memory").Put("pid", process);
    json.Put("ts", time - counters.front().time).Key("args").BeginObject();
    json.Put("requested", sample->requested).Put("allocated", sample->allocated);
    json.Put("reserved", sample->reserved).EndObject().EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace spillway::lab
