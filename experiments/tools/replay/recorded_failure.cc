#include "experiments/tools/replay/recorded_failure.h"

#include <fmt/format.h>

#include <utility>

#include "experiments/output/columns.h"

namespace spillway::lab {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kShownGroups = 7;
constexpr size_t kShownCallers = 4;
constexpr size_t kShownChains = 3;
constexpr Bytes kStep = Bytes::MiB(2);
constexpr uint64_t kMostOperations = 20'000'000;  // in all trials together: a few seconds

// Returns the size that PyTorch requests from the driver for an allocation of `size`. With
// expandable segments, a part of this memory may be mapped already.
Bytes SegmentFor(Bytes size, bool expandable) {
  if (size <= Bytes::MiB(1)) return Bytes::MiB(2);
  if (expandable) return RoundUp(size, Bytes::MiB(20));
  return size < Bytes::MiB(10) ? Bytes::MiB(20) : RoundUp(size, Bytes::MiB(2));
}

std::vector<ReplayResult> Try(const MemoryLog& log, const std::vector<std::string>& names,
                              const std::vector<Bytes>& memories, const AllocatorFactory& make) {
  std::vector<std::unique_ptr<ReplayableAllocator>> allocators;
  std::vector<ReplayedAllocator> subjects;
  for (size_t i = 0; i < names.size(); ++i) {
    allocators.push_back(make(names[i], log, memories[i]));
    subjects.push_back({names[i], allocators.back().get()});
  }
  ReplayOptions options;
  options.holders = false;
  return ReplayLog(log, subjects, options).results;
}

// Bisects the memory that each allocator needs, between a size that does not suffice and the size
// that it reserves in unlimited memory. `bound` is the least that any allocator needs for the log,
// which has `events` events.
std::vector<FailureAnalysis::Trial> TryAllocators(const MemoryLog& log, Bytes bound,
                                                  uint64_t events,
                                                  const std::vector<std::string>& names,
                                                  const AllocatorFactory& make) {
  std::vector<Bytes> serves(names.size()), fails(names.size(), bound - kStep);
  const auto unlimited =
      Try(log, names, std::vector<Bytes>(names.size(), Bytes::Unlimited()), make);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!unlimited[i].fits()) continue;
    serves[i] = RoundUp(unlimited[i].peak_reserved, kStep);
  }
  const uint64_t a_round = events * (names.size() + 1);
  const auto rounds = std::clamp<uint64_t>(kMostOperations / a_round, 1, 24);
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<std::string> tried;
    std::vector<size_t> which;
    std::vector<Bytes> memories;
    for (size_t i = 0; i < names.size(); ++i) {
      if (serves[i] - fails[i] <= kStep || serves[i] == Bytes(0)) continue;
      const Bytes half = RoundDown(Bytes((fails[i] + serves[i]).count() / 2), kStep);
      tried.push_back(names[i]);
      which.push_back(i);
      // The size reserved in unlimited memory may not suffice, because a limit changes the choices
      // of an allocator.
      memories.push_back(round == 0 ? serves[i] : std::max(half, fails[i] + Bytes(1)));
    }
    if (tried.empty()) break;
    const auto results = Try(log, tried, memories, make);
    for (size_t k = 0; k < which.size(); ++k) {
      const size_t i = which[k];
      if (results[k].fits()) {
        serves[i] = memories[k];
      } else {
        fails[i] = memories[k];
        if (round == 0) serves[i] = serves[i] * 2;
      }
    }
  }
  std::vector<FailureAnalysis::Trial> trials;
  for (size_t i = 0; i < names.size(); ++i) {
    trials.push_back({names[i], serves[i] > Bytes(0) ? std::optional(serves[i]) : std::nullopt});
  }
  std::stable_sort(trials.begin(), trials.end(), [](const auto& a, const auto& b) {
    return a.needed.value_or(Bytes::Unlimited()) < b.needed.value_or(Bytes::Unlimited());
  });
  return trials;
}

std::string MiB(Bytes size) { return fmt::format("{:.0f} MiB", size.mib()); }

// Returns "48 x 36 MiB", or "148 blocks" if their sizes differ.
std::string Count(const HolderGroup& group) {
  if (group.each) return fmt::format("{} x {}", group.blocks, FormatBytes(*group.each));
  return fmt::format("{} blocks", group.blocks);
}

std::string FormatGroups(const std::vector<HolderGroup>& groups, bool frames) {
  std::string text = "Held by, in MiB:\n";
  Bytes rest;
  for (size_t i = 0; i < groups.size(); ++i) {
    const HolderGroup& group = groups[i];
    if (!frames && i >= kShownGroups) {
      rest += group.size;
      continue;
    }
    const std::string begin = fmt::format("  {:7.1f}  {:<13}  ", group.size.mib(), Count(group));
    text += begin + NameOf(group, kWidth - begin.size()) + "\n";
    if (!frames) continue;
    for (size_t k = 0; k < std::min(group.chains.size(), kShownChains); ++k) {
      const CallChain& chain = group.chains[k];
      text += fmt::format("           {:.1f} in {} blocks, called by\n", chain.size.mib(),
                          chain.blocks);
      for (const StackFrame& call : chain.calls) {
        text += "             " + Ending(TextOf(call), kWidth - 13) + "\n";
      }
    }
    if (group.chains.size() > kShownChains) {
      text += fmt::format("           and {} other chains of calls\n",
                          group.chains.size() - kShownChains);
    }
  }
  if (rest > Bytes(0)) {
    text += fmt::format("  {:7.1f}  in {} other groups (--frames shows all of them, with calls)\n",
                        rest.mib(), groups.size() - kShownGroups);
  }
  return text;
}

std::string FormatCallers(const std::vector<Caller>& callers) {
  if (callers.empty()) return {};
  std::string text = "Requested below these lines, in MiB:\n";
  for (size_t i = 0; i < std::min(callers.size(), kShownCallers); ++i) {
    const Caller& caller = callers[i];
    const std::string begin =
        fmt::format("  {:7.1f}  {:{}}", caller.size.mib(), "", 2 * std::min(caller.depth, 8));
    const std::string end =
        caller.times == 1 ? ""
                          : fmt::format(", {} times {:.1f}", caller.times, caller.each_time.mib());
    const size_t width = kWidth - begin.size() - end.size();
    const std::string whole = TextOf(caller.frame);
    text += begin + (whole.size() <= width ? whole : Ending(TextOf(caller.frame, true), width)) +
            end + "\n";
  }
  return text;
}

// Returns a sentence about the allocators that need less than the recorded one and have no row.
std::string FormatTrials(const FailureAnalysis& failure, const std::vector<std::string>& rows) {
  const Bytes recorded = failure.NeededBy("pytorch").value_or(Bytes::Unlimited());
  std::vector<std::string> others;
  for (const auto& [allocator, needed] : failure.trials) {
    if (std::ranges::count(rows, allocator) > 0 || needed.value_or(recorded) >= recorded) continue;
    others.push_back(fmt::format("{} {:.0f}", allocator, needed->mib()));
  }
  return Wrap(fmt::format("No allocator serves it in less than {} ({} B){}{}.", MiB(failure.bound),
                          failure.bound.count(), others.empty() ? "" : "; others need, in MiB: ",
                          fmt::join(others, ", "))) +
         "\n";
}

std::string FormatRemedies(const FailureAnalysis& failure) {
  if (failure.Fits(failure.NeededBy("pytorch")) == true) {
    std::string text =
        fmt::format("In {} the request is served.",
                    IfLimited(failure.memory) ? MiB(failure.memory) : "unlimited memory");
    if (failure.awaited()) {
      text += fmt::format(
          " It failed because a block of {} that the program had freed still waited for another "
          "stream; the block was free directly afterwards, so that a second try works: catch "
          "torch.cuda.OutOfMemoryError and request again, or synchronize with the stream before.",
          MiB(failure.recorded.awaited));
    }
    return Wrap(text) + "\n";
  }
  if (failure.remedies.empty()) return "No remedy that was tried serves it.\n";
  std::string text = "What helps, the cheapest first, each verified by a replay:\n";
  for (size_t i = 0; i < failure.remedies.size(); ++i) {
    text += Wrap(fmt::format("  {}. {}", i + 1, failure.remedies[i].text), 5) + "\n";
  }
  return text;
}

void PutStrings(JsonWriter& json, const std::vector<StackFrame>& frames) {
  json.BeginArray();
  for (const StackFrame& frame : frames) json.Put(TextOf(frame));
  json.EndArray();
}

std::optional<std::string> TextOf(const std::optional<StackFrame>& frame) {
  return frame ? std::optional(TextOf(*frame)) : std::nullopt;
}

void PutGroups(JsonWriter& json, const std::vector<HolderGroup>& groups) {
  json.Key("groups").BeginArray();
  for (const HolderGroup& group : groups) {
    json.BeginObject().Put("name", NameOf(group)).Put("frame", TextOf(group.requester));
    json.Put("in", TextOf(group.through)).Put("bytes", group.size).Put("blocks", group.blocks);
    json.Put("size_bytes", group.each).Put("from_start", group.from_start);
    json.Key("chains").BeginArray();
    for (const CallChain& chain : group.chains) {
      json.BeginObject().Put("bytes", chain.size).Put("blocks", chain.blocks);
      PutStrings(json.Key("calls"), chain.calls);
      json.EndObject();
    }
    json.EndArray().EndObject();
  }
  json.EndArray();
}

void PutCallers(JsonWriter& json, const std::vector<Caller>& callers) {
  json.Key("callers").BeginArray();
  for (const Caller& caller : callers) {
    json.BeginObject().Put("frame", TextOf(caller.frame)).Put("depth", caller.depth);
    json.Put("bytes", caller.size).Put("blocks", caller.blocks).Put("times", caller.times);
    json.Put("each_time_bytes", caller.each_time).EndObject();
  }
  json.EndArray();
}

}  // namespace

std::optional<RecordedFailure> ReadRecordedFailure(const MemoryLog& log) {
  const std::optional<uint64_t> last = log.LastFailure();
  if (!last || !log.start().records_segments) return std::nullopt;
  RecordedFailure failure;
  const bool expandable = log.start().pytorch && log.start().pytorch->expandable_segments;
  Bytes peak;
  for (const StartSegment& segment : log.start().segments) failure.reserved += segment.size;
  peak = failure.reserved;
  log.Walk([&](const MemoryEvent& event) {
    if (event.kind == MemoryEvent::Kind::kSegmentAllocate) failure.reserved += event.size;
    if (event.kind == MemoryEvent::Kind::kSegmentFree) failure.reserved -= event.size;
    peak = std::max(peak, failure.reserved);
    if (event.kind == MemoryEvent::Kind::kAllocate) failure.awaited = Bytes();
    if (event.kind == MemoryEvent::Kind::kFree) {
      failure.awaited = std::max(failure.awaited, event.size);
    }
    if (event.kind != MemoryEvent::Kind::kFailed) return true;
    ++failure.failures;
    failure.event = event.index;
    failure.wanted = event.size;
    failure.device_free = event.device_free;
    return event.index < *last;
  });
  failure.segment = SegmentFor(failure.wanted, expandable);
  failure.lower = peak;
  failure.upper = failure.reserved + failure.segment;
  return failure;
}

std::optional<Bytes> FailureAnalysis::NeededBy(const std::string& allocator) const {
  const auto trial = std::ranges::find(trials, allocator, &Trial::allocator);
  return trial == trials.end() ? std::nullopt : trial->needed;
}

std::optional<bool> FailureAnalysis::Fits(std::optional<Bytes> needed) const {
  if (given) return needed && *needed <= memory;
  if (!needed || *needed >= recorded.upper) return false;
  return *needed <= recorded.lower ? std::optional(true) : std::nullopt;
}

FailureAnalysis AnalyseFailure(const MemoryLog& log, const RecordedFailure& recorded,
                               std::optional<Bytes> memory, const std::vector<std::string>& names,
                               const AllocatorFactory& make, const std::vector<Card>& cards,
                               Bytes unit) {
  FailureAnalysis failure;
  failure.recorded = recorded;
  failure.memory = memory.value_or(recorded.capacity());
  failure.given = memory.has_value();
  // Given only the memory that it had reserved, the recorded allocator fails at the same event.
  const auto allocator = make("pytorch", log, recorded.capacity());
  const auto& settings = log.start().pytorch;
  const bool collects = settings && settings->garbage_collection_threshold > 0;
  ReplayOptions options;
  options.unit = unit;
  const Replayed replayed =
      ReplayLog(log, {{"pytorch", allocator.get(), true, collects, recorded.capacity()}}, options);
  if (const auto& failed = replayed.results[0].failure; failed && failed->recorded) {
    failure.stats = failed->stats;
    failure.holders = failed->holders;
  }
  failure.bound = replayed.summary.lower_bound;
  failure.stack = &log.stack(log.StackOf(recorded.event));
  failure.groups = GroupHolders(log, replayed.held_at_failure);
  failure.callers = FindCallers(log, replayed.held_at_failure);
  failure.trials = TryAllocators(log, failure.bound, replayed.summary.events, names, make);
  if (failure.Fits(failure.NeededBy("pytorch")) == true) return failure;
  FailureSituation situation{failure.memory, failure.NeededBy("pytorch"),
                             std::nullopt,   replayed.held_at_failure,
                             recorded.event, recorded.wanted};
  if (recorded.limited()) situation.available = recorded.reserved + *recorded.device_free;
  failure.remedies = FindFailureRemedies(log, situation, make, cards);
  return failure;
}

std::string Wrap(std::string_view text, size_t indent) {
  std::string wrapped;
  while (text.size() > kWidth - (wrapped.empty() ? 0 : indent)) {
    const size_t width = kWidth - (wrapped.empty() ? 0 : indent);
    size_t end = text.rfind(' ', width);
    // A word that is longer than a line stays whole.
    if (end == std::string_view::npos || text.find_first_not_of(' ') > end) {
      end = text.find(' ', width);
    }
    if (end == std::string_view::npos) break;
    wrapped += fmt::format("{}\n{:{}}", text.substr(0, end), "", indent);
    text.remove_prefix(end + 1);
  }
  return wrapped.append(text);
}

std::string FormatFailure(const FailureAnalysis& failure) {
  const RecordedFailure& recorded = failure.recorded;
  std::string text = fmt::format("recorded out of memory at event {}", recorded.event);
  if (recorded.failures > 1) text += fmt::format(", the last of {}", recorded.failures);
  text += fmt::format(": asked for {} ({} B, of the driver {}) with ", MiB(recorded.wanted),
                      recorded.wanted.count(), MiB(recorded.segment));
  if (const auto& stats = failure.stats) {
    text += fmt::format("{} allocated and {} free in {} reserved, the largest piece {}",
                        MiB(stats->allocated), MiB(recorded.reserved - stats->allocated),
                        MiB(recorded.reserved), MiB(stats->largest_free));
  } else {
    text += fmt::format("{} reserved", MiB(recorded.reserved));
  }
  if (const StackFrame* const requester = RequesterOf(*failure.stack)) {
    text += ", at " + TextOf(*requester);
  }
  text += fmt::format("; it had at least {} and less than {}", MiB(recorded.lower),
                      MiB(recorded.upper));
  if (recorded.device_free) {
    text += fmt::format("; the device had {} left", MiB(*recorded.device_free));
    if (recorded.limited()) {
      text += ": the process was limited to less (torch.cuda.set_per_process_memory_fraction)";
    }
  }
  return Wrap(text + ".") + "\n" + FormatRemedies(failure);
}

std::string FormatHolders(const FailureAnalysis& failure, const std::vector<std::string>& rows,
                          bool frames) {
  return FormatTrials(failure, rows) + FormatGroups(failure.groups, frames) +
         FormatCallers(failure.callers);
}

void PutFailure(JsonWriter& json, const FailureAnalysis& failure) {
  const RecordedFailure& recorded = failure.recorded;
  const auto& stats = failure.stats;
  json.Key("recorded_failure").BeginObject().Put("event", recorded.event);
  json.Put("failures", recorded.failures).Put("wanted_bytes", recorded.wanted);
  json.Put("segment_bytes", recorded.segment);
  json.Put("allocated_bytes", stats ? std::optional(stats->allocated) : std::nullopt);
  json.Put("reserved_bytes", recorded.reserved);
  json.Put("largest_free_bytes", stats ? std::optional(stats->largest_free) : std::nullopt);
  json.Put("device_free_bytes", recorded.device_free);
  json.Put("awaited_block_bytes",
           failure.awaited() ? std::optional(recorded.awaited) : std::nullopt);
  json.Put("process_limited", recorded.limited());
  json.Put("capacity_at_least_bytes", recorded.lower);
  json.Put("capacity_below_bytes", recorded.upper).Put("memory_bytes", IfLimited(failure.memory));
  json.Put("memory_given", failure.given).Put("lower_bound_bytes", failure.bound);
  PutStrings(json.Key("stack"), *failure.stack);
  json.Key("holders").BeginArray();
  for (const FailedRequest::Holder& holder : failure.holders) {
    json.BeginObject().Put("frame", IfAny(holder.frame)).Put("size_bytes", holder.size);
    json.Put("blocks", holder.blocks).Put("from_start", holder.from_start).EndObject();
  }
  json.EndArray();
  PutGroups(json, failure.groups);
  PutCallers(json, failure.callers);
  json.Key("trials").BeginArray();
  for (const FailureAnalysis::Trial& trial : failure.trials) {
    json.BeginObject().Put("allocator", trial.allocator).Put("serves_in_bytes", trial.needed);
    json.Put("fits", failure.Fits(trial.needed)).EndObject();
  }
  json.EndArray().Key("remedies").BeginArray();
  for (const FailureRemedy& remedy : failure.remedies) {
    json.BeginObject().Put("kind", remedy.kind).Put("text", remedy.text);
    json.Put("memory_bytes", remedy.memory).Put("to_spare_bytes", remedy.to_spare()).EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace spillway::lab
