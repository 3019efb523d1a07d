#include "experiments/output/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "experiments/output/explain.h"
#include "experiments/output/memory_timeline.h"
#include "traces/base/error.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

constexpr int kProcess = 1;

// Returns the thread of a stream, counted from 1 because Perfetto takes thread 0 for the idle
// thread.
int Thread(Stream stream) { return static_cast<int>(Index(stream)) + 1; }

// Returns the exact number of microseconds: "12.345678".
std::string Microseconds(Duration time) {
  const int64_t picoseconds = time.picoseconds();
  return fmt::format("{}.{:06}", picoseconds / 1'000'000, picoseconds % 1'000'000);
}

// An event. Events are sorted by time; events at the same time stay in the order of their addition.
struct Record {
  Duration time;
  std::string text;  // a JSON object on one line
};

class Writer {
 public:
  Writer(const Trace& trace, const Report& report, const CostModel& cost)
      : trace_(trace), report_(report), cost_(cost), reasons_(CopyReasons(report)) {
    for (StallExplanation& stall : ExplainStalls(trace, report)) {
      if (stall.command) stalls_.emplace(*stall.command, std::move(stall));
    }
  }

  std::string Write(const ChromeTraceOrigin& origin) {
    AddCommands();
    AddFlows();
    AddCounters();
    std::stable_sort(records_.begin(), records_.end(),
                     [](const Record& a, const Record& b) { return a.time < b.time; });
    JsonWriter json(2);
    json.BeginObject().Put("displayTimeUnit", "ns");
    json.Key("otherData").BeginObject().Put("tool", "spillway").Put("version", origin.version);
    json.Put("workload", origin.workload).Put("policy", origin.policy);
    json.Put("device", origin.device).Put("memory_bytes", origin.memory).Put("cost", origin.cost);
    json.Put("run_sha256", origin.run_sha256).EndObject();
    json.Key("traceEvents").BeginArray();
    AddNames(json, origin.machine);
    for (const Record& record : records_) json.PutJson(record.text);
    return json.EndArray().EndObject().Take();
  }

 private:
  void AddNames(JsonWriter& json, const std::string& machine) const {
    const auto meta = [&](const char* name, int thread, const char* key, const auto& value) {
      json.BeginObject().Put("ph", "M").Put("name", name).Put("pid", kProcess);
      if (thread > 0) json.Put("tid", thread);
      json.Key("args").BeginObject().Put(key, value).EndObject().EndObject();
    };
    meta("process_name", 0, "name", machine);
    for (const Stream stream : StreamsOf(report_)) {
      const int thread = Thread(stream);
      meta("thread_name", thread, "name", StreamName(stream, report_));
      meta("thread_sort_index", thread, "sort_index", thread);
    }
  }

  // Adds an event with the fields that all kinds of events share. `fill` adds the other fields.
  template <typename Fill>
  void Add(const char* phase, std::string_view category, std::string_view name, Duration time,
           std::optional<Stream> stream, Fill fill) {
    JsonWriter json(0);
    json.BeginObject().Put("ph", phase);
    if (!category.empty()) json.Put("cat", category);
    json.Put("name", name).Put("pid", kProcess);
    if (stream) json.Put("tid", Thread(*stream));
    json.Key("ts").PutJson(Microseconds(time));
    fill(json);
    std::string text = json.EndObject().Take();
    text.pop_back();  // the newline
    records_.push_back({time, std::move(text)});
  }

  void AddCommands() {
    size_t next_decision = 0;
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      const TimelineEntry& entry = report_.timeline[i];
      const Interval& interval = entry.interval;
      const bool kernel = entry.kind == CommandKind::kKernel;
      const Op& op = trace_.op(entry.op);
      const std::string name =
          kernel ? op.name
                 : fmt::format("{} {}", lab::Name(reasons_[i]), trace_.tensor(entry.tensor).name);
      Add("X", kernel ? (entry.recompute ? "kernel,recompute" : "kernel") : "copy", name,
          interval.start, entry.event.stream, [&](JsonWriter& json) {
            json.Key("dur").PutJson(Microseconds(interval.end - interval.start));
            json.Key("args").BeginObject().Put("op", Index(entry.op));
            if (kernel) {
              json.Put("layer", trace_.layer(op.layer).name).Put("type", traces::Name(op.type));
              json.Put("phase", traces::Name(op.phase));
              json.Put("algorithms", Algorithms(entry.op, next_decision));
              json.Put("flops", op.flops()).Put("workspace_bytes", entry.size);
            } else {
              json.Put("op_name", op.name).Put("tensor", trace_.tensor(entry.tensor).name);
              json.Put("bytes", entry.size);
              json.Put("gb_per_s", GigabytesPerSecond(entry.size, interval.end - interval.start));
              json.Put("device_offset", entry.device.offset);
            }
            json.Put("issued_us", interval.issued.milliseconds() * 1e3);
            json.Put("alone_us", entry.nominal.milliseconds() * 1e3);
            if (const auto stall = stalls_.find(i); stall != stalls_.end()) {
              json.Put("stall_us", stall->second.length.milliseconds() * 1e3);
              json.Put("stall_cause", lab::Name(stall->second.cause));
              json.Put("waited_for", stall->second.waited_for);
            }
            json.EndObject();
          });
    }
  }

  // Returns the algorithms of the next kernel in issue order: "fwd: winograd, ...". Its decisions
  // from index `next` on name one slot after the other, until each slot has run the whole batch.
  // Moves `next` past them.
  std::string Algorithms(OpId id, size_t& next) const {
    const Op& op = trace_.op(id);
    std::string text;
    auto left = static_cast<int64_t>(op.slots.size()) * op.batch;
    for (; left > 0 && next < report_.decisions.size(); ++next) {
      const Decision& decision = report_.decisions[next];
      if (decision.verb != Verb::kRun) continue;
      SPILLWAY_CHECK(decision.op == id);
      const KernelRun& run = decision.run;
      const Kernel& kernel = cost_.Kernels(op, run.slot, run.batch)[run.kernel];
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", op.slots[run.slot].name,
                          kernel.algorithm);
      if (run.batch != op.batch) text += fmt::format(" on {}", run.batch);
      left -= run.batch;
    }
    return text;
  }

  static std::optional<double> GigabytesPerSecond(Bytes size, Duration time) {
    if (time <= Duration()) return std::nullopt;
    return static_cast<double>(size.count()) / time.seconds() / 1e9;
  }

  void AddFlows() {
    std::map<TensorId, size_t> offloads;  // index of the latest offload of each tensor
    std::map<TensorId, size_t> arrivals;  // copies to the device that no kernel has read yet
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      const TimelineEntry& entry = report_.timeline[i];
      if (entry.kind == CommandKind::kToHost) {
        offloads[entry.tensor] = i;
      } else if (entry.kind == CommandKind::kToDevice) {
        const auto offload = offloads.find(entry.tensor);
        if (offload != offloads.end()) AddFlow("offload and return", offload->second, i);
        arrivals[entry.tensor] = i;
      } else {
        for (const TensorId input : trace_.op(entry.op).inputs) {
          const auto arrival = arrivals.find(trace_.Root(input));
          if (arrival == arrivals.end()) continue;
          AddFlow("return and use", arrival->second, i);
          arrivals.erase(arrival);
        }
      }
    }
  }

  // Adds a flow between two commands. Each end is at the start of its command, a time that no other
  // command of the stream covers.
  void AddFlow(std::string_view name, size_t from, size_t to) {
    const int64_t id = ++flows_;
    const auto end = [&](const char* phase, const TimelineEntry& entry) {
      Add(phase, "flow", name, entry.interval.start, entry.event.stream, [&](JsonWriter& json) {
        json.Put("id", id);
        if (*phase == 'f') json.Put("bp", "e");
      });
    };
    end("s", report_.timeline[from]);
    end("f", report_.timeline[to]);
  }

  void AddCounters() {
    const auto counter = [&](std::string_view name, Duration time,
                             std::initializer_list<std::pair<const char*, Bytes>> values) {
      Add("C", "", name, time, std::nullopt, [&](JsonWriter& json) {
        json.Key("args").BeginObject();
        for (const auto& [key, size] : values) json.Put(key, size);
        json.EndObject();
      });
    };
    for (const MemorySample& sample : MemoryTimeline(report_)) {
      const PoolId pool = report_.placements[sample.change].pool;
      if (pool == PoolId::kHost) {
        counter("pinned host memory", sample.time, {{"pinned", sample.pinned()}});
      } else if (pool != PoolId::kDevice) {
        counter(report_.pools[NumberOf(pool)] + " memory", sample.time,
                {{"allocated", sample.outside[NumberOf(pool)]}});
      } else {
        counter("device memory", sample.time,
                {{"requested", sample.requested},
                 {"allocated", sample.allocated},
                 {"reserved", sample.reserved}});
      }
    }
    if (report_.metrics.pinned_peak == Bytes(0)) {
      counter("pinned host memory", Duration(), {{"pinned", Bytes(0)}});
    }
  }

  const Trace& trace_;
  const Report& report_;
  const CostModel& cost_;
  const std::vector<CopyReason> reasons_;
  std::map<size_t, StallExplanation> stalls_;  // by the command that waited
  std::vector<Record> records_;
  int64_t flows_ = 0;
};

}  // namespace

std::vector<Stream> StreamsOf(const Report& report) {
  std::array<bool, kStreamCount> used{};
  std::fill_n(used.begin(), 1 + 2 * report.pools.size(), true);
  for (const TimelineEntry& entry : report.timeline) used[Index(entry.event.stream)] = true;
  std::vector<Stream> streams;
  for (size_t i = 0; i < kStreamCount; ++i) {
    if (used[i]) streams.push_back(static_cast<Stream>(i));
  }
  return streams;
}

std::string StreamName(Stream stream, const Report& report) {
  constexpr std::array<std::string_view, 3> kNames{"compute", "h2d (copies to the device)",
                                                   "d2h (copies to the host)"};
  if (Index(stream) < kNames.size()) return std::string(kNames[Index(stream)]);
  if (IsLane(stream)) return fmt::format("{} (another stream of the program)", Name(stream));
  const PoolId pool = PoolOf(stream);
  const bool in = stream == StreamOf(pool, Direction::kToDevice);
  return fmt::format("{} (copies {} {})", Name(stream), in ? "from" : "to",
                     report.pools[NumberOf(pool)]);
}

std::string FormatChromeTrace(const Trace& trace, const Report& report, const CostModel& cost,
                              const ChromeTraceOrigin& origin) {
  SPILLWAY_CHECK(report.fits());
  return Writer(trace, report, cost).Write(origin);
}

}  // namespace spillway::lab
