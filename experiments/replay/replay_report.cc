#include "experiments/replay/replay_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/output/json_writer.h"

namespace spillway {
namespace {

constexpr size_t kShownHolders = 10;

Value Count(uint64_t value) { return static_cast<int64_t>(value); }

Value EventOf(const ReplayResult& result) {
  if (result.fits() || result.failure->at_start) return {};
  return Count(result.failure->event);
}

// What is free in `memory` when the request fails, in whole and in one piece.
Bytes Free(const FailedRequest& failure, Bytes memory) { return memory - failure.stats.allocated; }

std::string Place(const FailedRequest& failure) {
  return failure.at_start ? "at the start of the log" : fmt::format("at event {}", failure.event);
}

std::string Percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

// What is known of the youngest of the blocks, or of the request.
Value NameOrNull(const MemoryLog& log, uint64_t event) {
  std::string name = log.Describe(event);
  return name.empty() ? Value() : Value(std::move(name));
}

Row HolderRow(const MemoryLog& log, const FailedRequest::Holder& holder) {
  const bool all_from_start = holder.from_start == holder.blocks;
  return {{"size_bytes", holder.size.count()},
          {"blocks", Count(holder.blocks)},
          {"from_start", Count(holder.from_start)},
          {"first_event", all_from_start ? Value() : Count(holder.first_event)},
          {"last_event", all_from_start ? Value() : Count(holder.last_event)},
          {"last", all_from_start ? Value() : NameOrNull(log, holder.last_event)}};
}

}  // namespace

std::vector<Row> ReplayRows(const Replayed& replayed) {
  std::vector<Row> rows;
  const int64_t bound = replayed.summary.lower_bound.count();
  for (const ReplayResult& result : replayed.results) {
    Value per_second, over_bound, largest_free;
    if (result.nanoseconds && *result.nanoseconds > 0) {
      per_second =
          static_cast<double>(result.operations) * 1e9 / static_cast<double>(*result.nanoseconds);
    }
    if (result.fits() && bound > 0) {
      over_bound = static_cast<double>(result.peak_reserved.count()) / static_cast<double>(bound);
    }
    if (!result.fits()) {
      largest_free = result.failure->stats.largest_free.count();
    } else if (!result.samples.empty()) {
      largest_free = result.samples.back().largest_free.count();
    }
    rows.push_back(
        {{"allocator", result.allocator},
         {"status", std::string(result.fits() ? "ok" : "oom")},
         {"peak_requested_bytes", result.peak_requested.count()},
         {"peak_allocated_bytes", result.peak_allocated.count()},
         {"peak_reserved_bytes", result.peak_reserved.count()},
         {"lower_bound_bytes", bound},
         {"failed_event", EventOf(result)},
         {"operations_per_second", per_second},
         {"fragmentation", result.fragmentation()},
         {"over_lower_bound", over_bound},
         {"largest_free_bytes", largest_free},
         {"as_recorded",
          result.compared && result.fits() ? Value(!result.deviates_at.has_value()) : Value()},
         {"deviates_at", result.deviates_at ? Count(*result.deviates_at) : Value()}});
  }
  return rows;
}

std::string FormatReplayJson(const MemoryLog& log, const Replayed& replayed,
                             const std::vector<Row>& rows,
                             const std::optional<std::vector<Remedy>>& remedies) {
  const LogSummary& summary = replayed.summary;
  JsonWriter json(3);
  json.BeginObject().Put("schema", std::string("spillway.replay/v1"));
  json.Key("log").PutRow(
      {{"format", std::string(log.Format())},
       {"events", Count(summary.events)},
       {"allocations", Count(summary.allocations)},
       {"start_blocks", Count(log.start().blocks.size())},
       {"peak_blocks", Count(summary.peak_blocks)},
       {"peak_requested_bytes", summary.peak_requested.count()},
       {"lower_bound_bytes", summary.lower_bound.count()},
       {"recorded_peak_reserved_bytes", summary.recorded_peak_reserved
                                            ? Value(summary.recorded_peak_reserved->count())
                                            : Value()}});
  json.Key("rows").BeginArray();
  for (const Row& row : rows) json.PutRow(row);
  json.EndArray();
  if (remedies) {
    json.Key("out_of_memory").BeginArray();
    for (const ReplayResult& result : replayed.results) {
      if (result.fits()) continue;
      const FailedRequest& failure = *result.failure;
      json.BeginObject().Put("allocator", result.allocator).Put("event", EventOf(result));
      json.Put("wanted", failure.at_start ? Value() : NameOrNull(log, failure.event));
      json.Put("wanted_bytes", failure.wanted.count());
      json.Put("requested_bytes", failure.stats.requested.count());
      json.Put("allocated_bytes", failure.stats.allocated.count());
      json.Put("reserved_bytes", failure.stats.reserved.count());
      json.Put("largest_free_bytes", failure.stats.largest_free.count());
      json.Key("holders").BeginArray();
      for (const auto& holder : failure.holders) json.PutRow(HolderRow(log, holder));
      json.EndArray();
      for (const Remedy& remedy : *remedies) {
        if (remedy.allocator != result.allocator) continue;
        json.Key("would_fit_with").BeginArray();
        for (const std::string& other : remedy.others) json.Put(other);
        json.EndArray();
        json.Put("would_fit_in_bytes", remedy.memory ? Value(remedy.memory->count()) : Value());
        break;
      }
      json.EndObject();
    }
    json.EndArray();
  }
  return json.EndObject().Take();
}

std::string FormatReplayTable(const MemoryLog& log, const Replayed& replayed,
                              const std::vector<Row>& rows) {
  const LogSummary& summary = replayed.summary;
  std::string text = fmt::format(
      "{} log: {} events, {} blocks live at its start, at most {}; at least {} are needed\n",
      log.Format(), summary.events, log.start().blocks.size(), summary.peak_blocks,
      FormatBytes(summary.lower_bound));
  if (summary.recorded_peak_reserved) {
    text += fmt::format("recorded: at most {} reserved\n",
                        FormatBytes(*summary.recorded_peak_reserved));
  }
  std::vector<std::vector<std::string>> cells{{"allocator", "status", "requested", "allocated",
                                               "reserved", "over bound", "lost", "Mop/s",
                                               "as recorded"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const ReplayResult& result = replayed.results[i];
    const auto* over = std::get_if<double>(&rows[i][9].value);
    const auto* speed = std::get_if<double>(&rows[i][7].value);
    std::string recorded = result.compared && result.fits() ? "yes" : "";
    if (result.deviates_at) recorded = fmt::format("until event {}", *result.deviates_at);
    cells.push_back({result.allocator, result.fits() ? "ok" : "oom " + Place(*result.failure),
                     FormatBytes(result.peak_requested), FormatBytes(result.peak_allocated),
                     FormatBytes(result.peak_reserved),
                     over != nullptr ? fmt::format("{:.3f}x", *over) : "",
                     Percent(result.fragmentation()),
                     speed != nullptr ? fmt::format("{:.1f}", *speed / 1e6) : "", recorded});
  }
  return text + FormatTable(cells);
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
    text += "  held by:\n";
    for (size_t i = 0; i < failure.holders.size() && i < kShownHolders; ++i) {
      const FailedRequest::Holder& holder = failure.holders[i];
      text +=
          fmt::format("    {:>10}  {} x {}",
                      FormatBytes(Bytes(holder.size.count() * static_cast<int64_t>(holder.blocks))),
                      holder.blocks, FormatBytes(holder.size));
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
  }
  return text;
}

std::string FormatReplayCsv(const Replayed& replayed) {
  std::string text =
      "allocator,event,time_us,requested_bytes,allocated_bytes,reserved_bytes,largest_free_bytes,"
      "fragmentation\r\n";
  for (const ReplayResult& result : replayed.results) {
    // A specification may hold commas, which FormatCsv would quote; so is it here.
    const bool quoted = result.allocator.find(',') != std::string::npos;
    const std::string name = quoted ? '"' + result.allocator + '"' : result.allocator;
    for (const ReplaySample& sample : result.samples) {
      const int64_t reserved = sample.reserved.count();
      const double lost = reserved == 0 ? 0
                                        : 1 - static_cast<double>(sample.allocated.count()) /
                                                  static_cast<double>(reserved);
      text += fmt::format("{},{},{},{},{},{},{},{:.6f}\r\n", name, sample.event, sample.time,
                          sample.requested.count(), sample.allocated.count(), reserved,
                          sample.largest_free.count(), lost);
    }
  }
  return text;
}

std::string FormatReplayTrace(const Replayed& replayed, const Row& other) {
  JsonWriter json(2);
  json.BeginObject().Put("displayTimeUnit", std::string("ns")).Key("otherData").PutRow(other);
  json.Key("traceEvents").BeginArray();
  struct Counter {
    int64_t time;
    int64_t process;
    const ReplaySample* sample;
  };
  std::vector<Counter> counters;
  for (const ReplayResult& result : replayed.results) {
    const int64_t process = &result - replayed.results.data() + 1;
    json.BeginObject().Put("ph", std::string("M")).Put("name", std::string("process_name"));
    json.Put("pid", process).Key("args").PutRow({{"name", result.allocator}}).EndObject();
    for (const ReplaySample& sample : result.samples) {
      counters.push_back({sample.time, process, &sample});
    }
  }
  std::stable_sort(counters.begin(), counters.end(),
                   [](const Counter& a, const Counter& b) { return a.time < b.time; });
  for (const Counter& counter : counters) {
    json.BeginObject().Put("ph", std::string("C")).Put("name", std::string("device memory"));
    json.Put("pid", counter.process).Put("ts", counter.time - counters.front().time);
    json.Key("args").PutRow({{"requested", counter.sample->requested.count()},
                             {"allocated", counter.sample->allocated.count()},
                             {"reserved", counter.sample->reserved.count()}});
    json.EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace spillway
