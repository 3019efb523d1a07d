#include "experiments/output/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "experiments/output/explain.h"
#include "experiments/output/json_writer.h"
#include "experiments/output/memory_timeline.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

constexpr int kProcess = 1;

// Streams are numbered from 1: Perfetto takes thread 0 for the idle thread.
int Thread(Stream stream) { return static_cast<int>(Index(stream)) + 1; }

constexpr std::array<std::string_view, kStreamCount> kThreadNames{
    "compute", "h2d (copies to the device)", "d2h (copies to the host)"};

// "12.345678": microseconds, exact.
std::string Microseconds(Duration time) {
  const int64_t picoseconds = time.picoseconds();
  return fmt::format("{}.{:06}", picoseconds / 1'000'000, picoseconds % 1'000'000);
}

// One event, with what it is sorted by: time, then the order in which it was added.
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
    json.BeginObject().Put("displayTimeUnit", std::string("ns"));
    json.Key("otherData").PutRow(origin.other);
    json.Key("traceEvents").BeginArray();
    AddNames(json, origin.machine);
    for (const Record& record : records_) json.PutNumber(record.text);
    return json.EndArray().EndObject().Take();
  }

 private:
  static void AddNames(JsonWriter& json, const std::string& machine) {
    const auto meta = [&](std::string_view name, int thread, const Row& args) {
      json.BeginObject().Put("ph", std::string("M")).Put("name", std::string(name));
      json.Put("pid", int64_t{kProcess});
      if (thread > 0) json.Put("tid", int64_t{thread});
      json.Key("args").PutRow(args).EndObject();
    };
    meta("process_name", 0, {{"name", machine}});
    for (size_t s = 0; s < kStreamCount; ++s) {
      const int thread = Thread(static_cast<Stream>(s));
      meta("thread_name", thread, {{"name", std::string(kThreadNames[s])}});
      meta("thread_sort_index", thread, {{"sort_index", int64_t{thread}}});
    }
  }

  // An event with the fields that all kinds share; `fill` adds the others.
  template <typename Fill>
  void Add(const char* phase, std::string_view category, std::string_view name, Duration time,
           std::optional<Stream> stream, Fill fill) {
    JsonWriter json(0);
    json.BeginObject().Put("ph", std::string(phase));
    if (!category.empty()) json.Put("cat", std::string(category));
    json.Put("name", std::string(name)).Put("pid", int64_t{kProcess});
    if (stream) json.Put("tid", int64_t{Thread(*stream)});
    json.Key("ts").PutNumber(Microseconds(time));
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
      Row args{{"op", static_cast<int64_t>(Index(entry.op))}};
      if (kernel) {
        args.push_back({"layer", trace_.layer(op.layer).name});
        args.push_back({"type", std::string(spillway::Name(op.type))});
        args.push_back({"phase", std::string(spillway::Name(op.phase))});
        args.push_back({"algorithms", Algorithms(entry.op, next_decision)});
        args.push_back({"flops", op.flops()});
        args.push_back({"workspace_bytes", entry.size.count()});
      } else {
        args.push_back({"op_name", op.name});
        args.push_back({"tensor", trace_.tensor(entry.tensor).name});
        args.push_back({"bytes", entry.size.count()});
        args.push_back({"gb_per_s", GigabytesPerSecond(entry.size, interval.end - interval.start)});
        args.push_back({"device_offset", entry.device.offset.count()});
      }
      args.push_back({"issued_us", interval.issued.milliseconds() * 1e3});
      args.push_back({"alone_us", entry.nominal.milliseconds() * 1e3});
      if (const auto stall = stalls_.find(i); stall != stalls_.end()) {
        args.push_back({"stall_us", stall->second.length.milliseconds() * 1e3});
        args.push_back({"stall_cause", std::string(spillway::Name(stall->second.cause))});
        args.push_back({"waited_for", stall->second.waited_for});
      }
      const std::string name = kernel ? op.name
                                      : fmt::format("{} {}", spillway::Name(reasons_[i]),
                                                    trace_.tensor(entry.tensor).name);
      Add("X", kernel ? (entry.recompute ? "kernel,recompute" : "kernel") : "copy", name,
          interval.start, entry.event.stream, [&](JsonWriter& json) {
            json.Key("dur").PutNumber(Microseconds(interval.end - interval.start));
            json.Key("args").PutRow(args);
          });
    }
  }

  // "fwd: winograd, ..." of the next kernel in issue order: its runs are logged before it, slot by
  // slot, until each slot has had the whole batch.
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

  static Value GigabytesPerSecond(Bytes size, Duration time) {
    if (time <= Duration()) return {};
    return static_cast<double>(size.count()) / time.seconds() / 1e9;
  }

  void AddFlows() {
    std::map<TensorId, size_t> offloads;  // the newest of each tensor, by its index
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

  // Each end lies at the start of its slice: a time that no other slice of the track covers.
  void AddFlow(std::string_view name, size_t from, size_t to) {
    const int64_t id = ++flows_;
    const auto end = [&](const char* phase, const TimelineEntry& entry) {
      Add(phase, "flow", name, entry.interval.start, entry.event.stream, [&](JsonWriter& json) {
        json.Put("id", id);
        if (*phase == 'f') json.Put("bp", std::string("e"));
      });
    };
    end("s", report_.timeline[from]);
    end("f", report_.timeline[to]);
  }

  void AddCounters() {
    const auto counter = [&](std::string_view name, Duration time, const Row& values) {
      Add("C", "", name, time, std::nullopt,
          [&](JsonWriter& json) { json.Key("args").PutRow(values); });
    };
    for (const MemorySample& sample : MemoryTimeline(report_)) {
      if (report_.placements[sample.change].host) {
        counter("pinned host memory", sample.time, {{"pinned", sample.pinned.count()}});
      } else {
        counter("device memory", sample.time,
                {{"requested", sample.requested.count()},
                 {"allocated", sample.allocated.count()},
                 {"reserved", sample.reserved.count()}});
      }
    }
    if (report_.metrics.pinned_peak == Bytes(0)) {
      counter("pinned host memory", Duration(), {{"pinned", int64_t{0}}});
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

std::string FormatChromeTrace(const Trace& trace, const Report& report, const CostModel& cost,
                              const ChromeTraceOrigin& origin) {
  SPILLWAY_CHECK(report.fits());
  return Writer(trace, report, cost).Write(origin);
}

}  // namespace spillway
