#include "experiments/output/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "experiments/output/memory_timeline.h"
#include "experiments/output/peak.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

StallCause CauseOf(const Wait& wait) {
  if (IsLane(wait.event.stream)) return StallCause::kLane;
  switch (wait.cause) {
    case WaitCause::kFetch:
      return StallCause::kFetch;
    case WaitCause::kFence:
      return StallCause::kFence;
    default:
      return StallCause::kMemory;
  }
}

std::string_view WhyWaited(WaitCause cause) {
  switch (cause) {
    case WaitCause::kSource:
      return "its source was being written by";
    case WaitCause::kFetch:
      return "an input was being made by";
    case WaitCause::kLane:
      return "its stream waited for";
    default:
      return "the memory it fills was in use by";
  }
}

// Returns a rate in GB/s with three significant digits.
std::string FormatRate(Bandwidth rate) {
  return fmt::format("{:.3g} GB/s", static_cast<double>(rate.bytes_per_second) / 1e9);
}

// The rate in one direction of the fastest link between a host and a GPU that is sold, the
// NVLink-C2C of NVIDIA's GH200 and GB200.
constexpr Bandwidth kLinkLimit{450'000'000'000};

// Returns the rate that moves `size` in `time`, rounded up, at most `kLinkLimit`. REQUIRES: time >
// 0.
Bandwidth RateOf(Bytes size, Duration time) {
  const Int128 numerator = Int128{size.count()} * 1'000'000'000'000;
  const Int128 rate = (numerator + time.picoseconds() - 1) / time.picoseconds();
  return {static_cast<int64_t>(std::min(rate, Int128{kLinkLimit.bytes_per_second}))};
}

Bytes Overlap(const Block& a, const Block& b) {
  return std::max(Bytes(0), std::min(a.end(), b.end()) - std::max(a.offset, b.offset));
}

class Explainer {
 public:
  // If `suggests` is true, each stall gets the remedies that might remove it.
  Explainer(const Trace& trace, const Report& report, bool suggests)
      : trace_(trace),
        report_(report),
        suggests_(suggests),
        liveness_(trace),
        reasons_(CopyReasons(report)),
        memory_(MemoryTimeline(report)) {
    for (size_t i = 0; i < report.timeline.size(); ++i) {
      by_stream_[Index(report.timeline[i].event.stream)].push_back(i);
    }
  }

  std::vector<StallExplanation> Explain() {
    Duration idle_from;  // end of the last kernel
    std::optional<size_t> last_kernel;
    for (const size_t i : by_stream_[Index(Stream::kCompute)]) {
      FollowPlacements(i);
      const TimelineEntry& entry = report_.timeline[i];
      if (entry.interval.start > idle_from) ExplainKernel(i, idle_from);
      idle_from = entry.interval.end;
      last_kernel = i;
    }
    if (report_.metrics.iteration > idle_from) ExplainDrain(last_kernel, idle_from);
    std::stable_sort(stalls_.begin(), stalls_.end(),
                     [](const auto& a, const auto& b) { return a.length > b.length; });
    return std::move(stalls_);
  }

 private:
  const TimelineEntry& At(size_t command) const { return report_.timeline[command]; }
  const Interval& TimeOf(size_t command) const { return report_.timeline[command].interval; }
  size_t CommandOf(Event event) const {
    return by_stream_[Index(event.stream)][event.sequence - 1];
  }
  const std::string& TensorName(size_t copy) const { return trace_.tensor(At(copy).tensor).name; }
  const std::string& OpName(size_t command) const { return trace_.op(At(command).op).name; }

  // Updates `live_` to the device blocks of tensors at the time when command `i` is issued.
  void FollowPlacements(size_t i) {
    for (; next_placement_ < report_.placements.size() &&
           report_.placements[next_placement_].commands <= i;
         ++next_placement_) {
      const Placement& placement = report_.placements[next_placement_];
      if (!placement.on_device() || placement.tensor == kNoTensor) continue;
      const bool takes =
          placement.kind == PlacementKind::kAllocate || placement.kind == PlacementKind::kEnter;
      if (takes) {
        live_[placement.tensor] = placement.block;
      } else {
        live_.erase(placement.tensor);
      }
    }
  }

  // Adds the wait before kernel `i`. Among causes that ended at the same time the first one counts.
  // The launch comes before the logged waits in that order, as in `ComputeMetrics`.
  void ExplainKernel(size_t i, Duration idle_from) {
    const TimelineEntry& entry = At(i);
    StallExplanation stall;
    stall.cause = StallCause::kLaunch;
    stall.command = i;
    stall.op = entry.op;
    stall.since = idle_from;
    stall.length = entry.interval.start - idle_from;
    Duration latest = entry.interval.issued;
    for (uint32_t w = 0; w < entry.wait_count; ++w) {
      const Wait& wait = report_.waits[entry.first_wait + w];
      const size_t command = CommandOf(wait.event);
      const Duration end = TimeOf(command).end;
      if (end <= latest) continue;
      latest = end;
      stall.cause = CauseOf(wait);
      stall.awaited = command;
    }
    if (!stall.awaited) {
      stall.waited_for = "the host, which had not issued it yet";
      Suggest(stall, {.kind = RemedyKind::kFasterHost},
              "if launches cost the host nothing, as in a CUDA graph");
    } else {
      Describe(stall);
      if (stall.cause == StallCause::kFence) {
        Suggest(stall, {.kind = RemedyKind::kNoFence, .op = stall.op},
                "without the fence before " + trace_.op(stall.op).name);
      }
      if (suggests_ && stall.cause != StallCause::kLane) {
        SuggestEarlierStart(stall);
        SuggestMemory(stall);
        SuggestLink(stall);
      }
    }
    stalls_.push_back(std::move(stall));
  }

  void ExplainDrain(std::optional<size_t> last_kernel, Duration idle_from) {
    StallExplanation stall;
    stall.cause = StallCause::kDrain;
    stall.since = idle_from;
    stall.length = report_.metrics.iteration - idle_from;
    if (last_kernel) stall.op = At(*last_kernel).op;
    for (size_t i = 0; i < report_.timeline.size(); ++i) {
      if (!stall.awaited || TimeOf(i).end > TimeOf(*stall.awaited).end) stall.awaited = i;
    }
    Describe(stall);
    if (suggests_) {
      SuggestEarlierStart(stall);
      SuggestLink(stall);
    }
    stalls_.push_back(std::move(stall));
  }

  std::string CommandText(size_t i) const {
    const TimelineEntry& entry = At(i);
    if (entry.kind == CommandKind::kKernel) return OpName(i);
    return fmt::format("{} of {}", Name(reasons_[i]), TensorName(i));
  }

  void Describe(StallExplanation& stall) const {
    const size_t awaited = *stall.awaited;
    const TimelineEntry& entry = At(awaited);
    const Interval& time = entry.interval;
    stall.waited_for = CommandText(awaited);
    if (entry.kind != CommandKind::kKernel) {
      stall.waited_for += fmt::format(" ({}, issued at {}, {})", FormatBytes(entry.size),
                                      OpName(awaited), FormatDuration(time.end - time.start));
    }
    if (time.start == time.issued) {
      stall.why_late = "it started as soon as it was issued";
    } else if (const auto before = Predecessor(awaited);
               before && TimeOf(*before).end == time.start) {
      stall.why_late = fmt::format("its stream was busy until {} with {}",
                                   FormatDuration(time.start), CommandText(*before));
    } else {
      for (uint32_t w = 0; w < entry.wait_count; ++w) {
        const Wait& wait = report_.waits[entry.first_wait + w];
        const size_t command = CommandOf(wait.event);
        if (TimeOf(command).end != time.start) continue;
        stall.why_late = fmt::format("{} {} until {}", WhyWaited(wait.cause), CommandText(command),
                                     FormatDuration(time.start));
        break;
      }
    }
  }

  // Returns the command before command `i` on its stream; nullopt if `i` is the first.
  std::optional<size_t> Predecessor(size_t i) const {
    const Event event = At(i).event;
    if (event.sequence < 2) return std::nullopt;
    return by_stream_[Index(event.stream)][event.sequence - 2];
  }

  static void Suggest(StallExplanation& stall, const StallRemedy& remedy, std::string text) {
    stall.suggestions.push_back({remedy, Duration(), Duration(), std::move(text)});
  }

  Direction DirectionOf(size_t copy) const {
    return At(copy).kind == CommandKind::kToHost ? Direction::kToHost : Direction::kToDevice;
  }

  // The earliest time at which copy `i` has something to copy: the last write of its source.
  Duration SourceReady(size_t i) const {
    const TimelineEntry& copy = At(i);
    const bool to_host = copy.kind == CommandKind::kToHost;
    for (size_t j = i; j-- > 0;) {
      const TimelineEntry& entry = At(j);
      if (to_host && entry.kind == CommandKind::kKernel) {
        for (const TensorId output : trace_.op(entry.op).outputs) {
          if (liveness_.Root(output) == copy.tensor) return entry.interval.end;
        }
      } else if (to_host ? entry.kind == CommandKind::kToDevice
                         : entry.kind == CommandKind::kToHost) {
        if (entry.tensor == copy.tensor) return entry.interval.end;
      }
    }
    return Duration();
  }

  // Returns the last kernel that started at or before `time`; nullopt if none did.
  std::optional<size_t> KernelAt(Duration time) const {
    const auto& kernels = by_stream_[Index(Stream::kCompute)];
    const auto after =
        std::upper_bound(kernels.begin(), kernels.end(), time,
                         [&](Duration value, size_t i) { return value < TimeOf(i).start; });
    if (after == kernels.begin()) return std::nullopt;
    return *(after - 1);
  }

  void SuggestEarlierStart(StallExplanation& stall) const {
    const size_t copy = *stall.awaited;
    if (At(copy).kind == CommandKind::kKernel) return;
    const Interval& time = TimeOf(copy);
    const Duration start = std::max(time.start - stall.length, SourceReady(copy));
    if (start >= time.start) return;  // it could not have started any earlier
    const OpId op = At(KernelAt(start).value_or(0)).op;
    const StallRemedy remedy{.kind = RemedyKind::kStartEarlier,
                             .op = op,
                             .tensor = At(copy).tensor,
                             .direction = DirectionOf(copy)};
    Suggest(stall, remedy,
            fmt::format("with the {} of {} at {}",
                        remedy.direction == Direction::kToHost ? "offload" : "prefetch",
                        TensorName(copy), trace_.op(op).name));
  }

  void SuggestMemory(StallExplanation& stall) const {
    const TimelineEntry& awaited = At(*stall.awaited);
    if (awaited.kind == CommandKind::kKernel) return;
    Bytes memory;
    std::string use;
    if (stall.cause == StallCause::kMemory) {
      memory = BytesInTheWay(*stall.command, awaited.device);
      use = trace_.op(stall.op).name + " would need to write elsewhere";
    } else if (awaited.kind == CommandKind::kToDevice) {
      memory = MoreIfKept(*stall.awaited);
      use = TensorName(*stall.awaited) + " would need to stay";
    }
    if (memory == Bytes(0)) return;
    Suggest(stall, {.kind = RemedyKind::kMoreMemory, .memory = memory},
            fmt::format("with {} more device memory, as much as {}", FormatBytes(memory), use));
  }

  // Returns the total size of the blocks that kernel `i` writes and that overlap `range`, including
  // its workspace.
  Bytes BytesInTheWay(size_t i, const Block& range) const {
    const TimelineEntry& kernel = At(i);
    Bytes bytes = kernel.size > Bytes(0) && Overlap(kernel.device, range) > Bytes(0)
                      ? kernel.device.size
                      : Bytes(0);
    const Op& op = trace_.op(kernel.op);
    std::vector<TensorId> counted;
    for (const auto* list : {&op.outputs, &op.scratch}) {
      for (const TensorId tensor : *list) {
        const TensorId root = liveness_.Root(tensor);
        const auto block = live_.find(root);
        if (block == live_.end() || Overlap(block->second, range) == Bytes(0) ||
            std::find(counted.begin(), counted.end(), root) != counted.end()) {
          continue;
        }
        counted.push_back(root);
        bytes += block->second.size;
      }
    }
    return bytes;
  }

  // Returns how many bytes higher the peak of allocated bytes would be if the tensor that copy `i`
  // brings back had stayed on the device. Returns 0 if the tensor lies in a block that is reserved
  // for the whole run, or if it did not leave the device before the copy.
  Bytes MoreIfKept(size_t i) const {
    const TensorId tensor = At(i).tensor;
    std::optional<size_t> released, returned;
    for (size_t p = 0; p < report_.placements.size(); ++p) {
      const Placement& placement = report_.placements[p];
      if (placement.commands > i) break;
      if (!placement.on_device() || placement.tensor != tensor) continue;
      if (placement.kind == PlacementKind::kAllocate) returned = p;
      if (placement.kind == PlacementKind::kFree) released = p;
      if (placement.kind == PlacementKind::kEnter) return Bytes(0);
    }
    if (!returned || !released || *released > *returned) return Bytes(0);
    Bytes peak = report_.metrics.peak_allocated;
    for (const MemorySample& sample : memory_) {
      if (sample.change >= *released && sample.change < *returned) {
        peak = std::max(peak, sample.allocated + report_.placements[*returned].block.size);
      }
    }
    return peak - report_.metrics.peak_allocated;
  }

  // Suggests a link so fast that the awaited copy would end when the wait began, or the fastest
  // link that is sold if that is slower. All copies before it without a gap between them would be
  // faster too.
  void SuggestLink(StallExplanation& stall) const {
    const size_t last = *stall.awaited;
    // A remedy can change only the host's link.
    if (PoolOf(At(last).event.stream) != PoolId::kHost) return;
    size_t first = last;
    Bytes moved = At(last).size;
    while (const auto before = Predecessor(first)) {
      if (TimeOf(*before).end != TimeOf(first).start) break;
      if (TimeOf(last).end - TimeOf(first).start > stall.length) break;
      first = *before;
      moved += At(first).size;
    }
    const Duration taken = TimeOf(last).end - TimeOf(first).start;
    if (taken <= stall.length) return;
    const Bandwidth now = RateOf(moved, taken), wanted = RateOf(moved, taken - stall.length);
    if (now >= wanted) return;
    const StallRemedy remedy{
        .kind = RemedyKind::kFasterLink, .direction = DirectionOf(last), .link = wanted};
    Suggest(
        stall, remedy,
        fmt::format("with {} to the {} (now {})", FormatRate(remedy.link),
                    remedy.direction == Direction::kToHost ? "host" : "device", FormatRate(now)));
  }

  const Trace& trace_;
  const Report& report_;
  const bool suggests_;
  const Liveness liveness_;
  const std::vector<CopyReason> reasons_;
  const std::vector<MemorySample> memory_;
  std::array<std::vector<size_t>, kStreamCount> by_stream_;  // commands, in issue order
  std::map<TensorId, Block> live_;  // device blocks of storages, as the last kernel found them
  size_t next_placement_ = 0;
  std::vector<StallExplanation> stalls_;
};

template <typename T>
std::optional<T> If(const Suggestion& suggestion, std::initializer_list<RemedyKind> kinds,
                    const T& value) {
  return When(std::find(kinds.begin(), kinds.end(), suggestion.remedy.kind) != kinds.end(), value);
}

Columns<Suggestion> SuggestionColumns(const Trace& trace) {
  using Kind = RemedyKind;
  return {
      {"kind", "", "", [](auto& s) { return Name(s.remedy.kind); }},
      {"iteration_ms", "ms", "as simulated with it", &Suggestion::iteration},
      {"gain_ms", "ms", "by so much shorter", &Suggestion::gain},
      {"op", "", "at this op",
       [&](auto& s) {
         return If(s, {Kind::kStartEarlier, Kind::kNoFence}, trace.op(s.remedy.op).name);
       }},
      {"tensor", "", "of the copy",
       [&](auto& s) { return If(s, {Kind::kStartEarlier}, trace.tensor(s.remedy.tensor).name); }},
      {"memory_bytes", "B", "with so much more device memory",
       [](auto& s) { return If(s, {Kind::kMoreMemory}, s.remedy.memory); }},
      {"link_bytes_per_second", "B/s", "with such a link",
       [](auto& s) { return If(s, {Kind::kFasterLink}, s.remedy.link.bytes_per_second); }},
      {"text", "", "a sentence for people", &Suggestion::text},
  };
}

// Returns the columns of stalls. REQUIRES: `stalls` are the items of all rows, and outlive the
// columns.
Columns<StallExplanation> StallColumns(const Trace& trace, const Report& report,
                                       const std::vector<StallExplanation>& stalls) {
  using Stall = StallExplanation;
  const auto if_awaited = [&report](auto get) {
    return [&report, get](const Stall& stall) {
      return stall.awaited ? std::optional(get(report.timeline[*stall.awaited])) : std::nullopt;
    };
  };
  const auto if_copy = [&report](auto get) {
    return [&report, get](const Stall& stall) {
      const bool copy =
          stall.awaited && report.timeline[*stall.awaited].kind != CommandKind::kKernel;
      return copy ? std::optional(get(*stall.awaited)) : std::nullopt;
    };
  };
  return {
      {"rank", "1", "1 is the longest", [&](auto& stall) { return &stall - stalls.data() + 1; }},
      {"cause", "", "fetch, fence, memory, launch or drain", [](auto& s) { return Name(s.cause); }},
      {"step", "1", "the op that waited", [](auto& stall) { return Index(stall.op); }},
      {"op", "", "its name", [&](auto& stall) { return trace.op(stall.op).name; }},
      {"since_ms", "ms", "the wait began", &Stall::since},
      {"stall_ms", "ms", "it lasted", &Stall::length},
      {"waited_for", "", "what the op waited for", &Stall::waited_for},
      {"tensor", "", "of the copy that it waited for",
       if_copy([&](size_t i) { return trace.tensor(report.timeline[i].tensor).name; })},
      {"copy", "", "offload, prefetch, fetch or input",
       if_copy([reasons = CopyReasons(report)](size_t i) { return Name(reasons[i]); })},
      {"bytes", "B", "of the copy", if_copy([&](size_t i) { return report.timeline[i].size; })},
      {"issued_at", "", "the op at which it was issued",
       if_awaited([&](auto& entry) { return trace.op(entry.op).name; })},
      {"start_ms", "ms", "what it waited for began",
       if_awaited([](auto& entry) { return entry.interval.start; })},
      {"end_ms", "ms", "and ended", if_awaited([](auto& entry) { return entry.interval.end; })},
      {"why_late", "", "what held it up", [](auto& stall) { return IfAny(stall.why_late); }},
      {"remedies", "", "what would have made the iteration shorter, simulated",
       [](auto& stall) {
         std::string all;
         for (const Suggestion& suggestion : stall.suggestions) {
           all += (all.empty() ? "" : "; ") + suggestion.text;
         }
         return IfAny(all);
       }},
      {"suggestions", "", "each of them: JSON only",
       [columns = SuggestionColumns(trace)](auto& stall) {
         return NestRows(columns, stall.suggestions);
       }},
  };
}

}  // namespace

std::string_view Name(StallCause cause) {
  constexpr std::array<std::string_view, 6> kNames{"fetch", "fence",  "memory",
                                                   "lane",  "launch", "drain"};
  return kNames[static_cast<size_t>(cause)];
}

std::string_view Name(CopyReason reason) {
  constexpr std::array<std::string_view, 4> kNames{"offload", "prefetch", "fetch", "input"};
  return kNames[static_cast<size_t>(reason)];
}

// The n-th copy of a tensor to the device belongs to the n-th decision to copy it, both counted
// from the end. For an input arrives before all decisions, and `Plan` moves tensors before the
// iteration.
std::vector<CopyReason> CopyReasons(const Report& report) {
  std::map<TensorId, std::vector<CopyReason>> decided;
  for (const Decision& decision : report.decisions) {
    if (!decision.done) continue;
    if (decision.verb == Verb::kPrefetch) decided[decision.tensor].push_back(CopyReason::kPrefetch);
    if (decision.verb == Verb::kFetch) decided[decision.tensor].push_back(CopyReason::kFetch);
  }
  std::vector<CopyReason> reasons(report.timeline.size(), CopyReason::kOffload);
  for (size_t i = report.timeline.size(); i-- > 0;) {
    const TimelineEntry& entry = report.timeline[i];
    if (entry.kind != CommandKind::kToDevice) continue;
    std::vector<CopyReason>& left = decided[entry.tensor];
    reasons[i] = left.empty() ? CopyReason::kInput : left.back();
    if (!left.empty()) left.pop_back();
  }
  return reasons;
}

std::vector<StallExplanation> ExplainStalls(const Trace& trace, const Report& report,
                                            const RemedyTrial& simulate, size_t limit) {
  SPILLWAY_CHECK(report.fits());
  std::vector<StallExplanation> stalls = Explainer(trace, report, limit > 0).Explain();
  for (size_t i = 0; i < stalls.size(); ++i) {
    std::vector<Suggestion> good;
    for (Suggestion& suggestion : stalls[i].suggestions) {
      if (i >= limit) break;
      const auto iteration = simulate(suggestion.remedy);
      if (!iteration || *iteration >= report.metrics.iteration) continue;
      suggestion.iteration = *iteration;
      suggestion.gain = report.metrics.iteration - *iteration;
      suggestion.text += fmt::format(": {} per iteration, {} less", FormatDuration(*iteration),
                                     FormatDuration(suggestion.gain));
      good.push_back(std::move(suggestion));
    }
    std::stable_sort(good.begin(), good.end(),
                     [](const auto& a, const auto& b) { return a.gain > b.gain; });
    stalls[i].suggestions = std::move(good);
  }
  return stalls;
}

bool HasLongStalls(const Report& report) {
  return report.metrics.stalls.total().picoseconds() * 100 >=
         report.metrics.iteration.picoseconds();
}

std::string FormatExplanation(const Trace& trace, const Report& report,
                              const std::vector<StallExplanation>& stalls, size_t limit) {
  const Duration iteration = report.metrics.iteration;
  const Duration total = report.metrics.stalls.total();
  std::string text =
      fmt::format("The compute stream ran kernels for {} of {} and waited {} times, {} in all.\n",
                  FormatDuration(report.metrics.compute), FormatDuration(iteration), stalls.size(),
                  FormatDuration(total));
  Duration shown;
  for (size_t i = 0; i < std::min(limit, stalls.size()); ++i) {
    const StallExplanation& stall = stalls[i];
    shown += stall.length;
    const std::string who =
        stall.cause == StallCause::kDrain           ? std::string("the end of the iteration")
        : report.timeline[*stall.command].recompute ? trace.op(stall.op).name + " (run again)"
                                                    : trace.op(stall.op).name;
    text += fmt::format("\n{:>3}. {} ({}): {} waited from {} for {}\n", i + 1,
                        FormatDuration(stall.length), Name(stall.cause), who,
                        FormatDuration(stall.since), stall.waited_for);
    if (!stall.why_late.empty()) text += fmt::format("     {}\n", stall.why_late);
    for (const Suggestion& suggestion : stall.suggestions) {
      text += fmt::format("     - {}\n", suggestion.text);
    }
  }
  if (limit == 0 && !stalls.empty()) {
    text += "--format json lists all waits.\n";
  } else if (stalls.size() > limit) {
    text += fmt::format("\n{} shorter waits, {} together; --format json lists all.\n",
                        stalls.size() - limit, FormatDuration(total - shown));
  }
  return text;
}

std::string FormatStalls(const View& view, const Trace& trace, const Report& report,
                         const std::vector<StallExplanation>& stalls) {
  return FormatAs(view, StallColumns(trace, report, stalls), stalls, "spillway.explain/v1",
                  [] { return std::string(); });
}

std::vector<RefusedVerb> CountRefused(const Report& report) {
  std::map<std::pair<Verb, Refusal>, int64_t> counts;
  for (const Decision& decision : report.decisions) {
    if (!decision.done) ++counts[{decision.verb, decision.refusal}];
  }
  std::vector<RefusedVerb> refused;
  for (const auto& [what, count] : counts) refused.push_back({what.first, what.second, count});
  return refused;
}

std::string FormatRefused(const Report& report) {
  std::vector<std::string> parts;
  for (const RefusedVerb& refused : CountRefused(report)) {
    parts.push_back(
        fmt::format("{} {} ({})", refused.count, Name(refused.verb), Name(refused.refusal)));
  }
  return parts.empty()
             ? std::string()
             : fmt::format("\nVerbs of the policy that were refused: {}\n", fmt::join(parts, ", "));
}

std::string FormatExplanationJson(const Trace& trace, const Report& report, const RunResult& result,
                                  const std::vector<StallExplanation>& stalls,
                                  const std::vector<Absence>& absences) {
  JsonWriter json(3);
  json.BeginObject().Put("schema", "spillway.explain/v1");
  PutRow(json.Key("row"), ResultColumns(), result);
  PutRows(json.Key("stalls"), StallColumns(trace, report, stalls), stalls);
  PutRows(json.Key("storages"), AbsenceColumns(trace, report), absences);
  const MemoryPeak peak = report.fits() ? FindPeak(trace, report) : MemoryPeak();
  json.Key("peak").BeginObject().Put("op", IfAny(peak.op)).Put("requested_bytes", peak.requested);
  PutRows(json.Key("holders"), PeakColumns(), peak.holders);
  json.EndObject();
  const Columns<RefusedVerb> refused{
      {"verb", "", "", [](auto& row) { return Name(row.verb); }},
      {"refusal", "", "", [](auto& row) { return Name(row.refusal); }},
      {"count", "1", "", &RefusedVerb::count},
  };
  PutRows(json.Key("refused"), refused, CountRefused(report));
  return json.EndObject().Take();
}

}  // namespace spillway::lab
