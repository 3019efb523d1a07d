#include "experiments/tools/replay/recorded_failure.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/output/columns.h"

namespace spillway {
namespace {

constexpr size_t kShownHolders = 12;
constexpr Bytes kStep = Bytes::MiB(2);
constexpr uint64_t kMostOperations = 20'000'000;  // in all trials together: a few seconds

// An `UpToFailure` is the part of a log up to and including the event `event`, a failed request.
class UpToFailure final : public MemoryLog {
 public:
  UpToFailure(const MemoryLog& log, uint64_t event) : log_(log), event_(event) {}
  std::string_view Format() const override { return log_.Format(); }
  const MemoryLogStart& start() const override { return log_.start(); }
  std::string Describe(uint64_t index) const override { return log_.Describe(index); }
  std::string Frame(uint64_t index) const override { return log_.Frame(index); }
  std::string StartFrame(uint32_t block) const override { return log_.StartFrame(block); }
  void Walk(const std::function<bool(const MemoryEvent&)>& visit) const override {
    log_.Walk([&](const MemoryEvent& event) {
      if (event.index > event_) return false;
      return visit(event) && event.index < event_;
    });
  }

 private:
  const MemoryLog& log_;
  const uint64_t event_;
};

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
  return ReplayLog(log, subjects).results;
}

}  // namespace

std::optional<RecordedFailure> FindRecordedFailure(const MemoryLog& log,
                                                   const std::vector<std::string>& names,
                                                   const AllocatorFactory& make) {
  if (!log.start().records_segments) return std::nullopt;
  RecordedFailure failure;
  failure.failures = 0;
  const bool expandable = log.start().pytorch && log.start().pytorch->expandable_segments;
  Bytes reserved, peak;
  for (const StartSegment& segment : log.start().segments) reserved += segment.size;
  peak = reserved;
  log.Walk([&](const MemoryEvent& event) {
    if (event.kind == MemoryEvent::Kind::kSegmentAllocate) reserved += event.size;
    if (event.kind == MemoryEvent::Kind::kSegmentFree) reserved -= event.size;
    peak = std::max(peak, reserved);
    if (event.kind != MemoryEvent::Kind::kFailed) return true;
    ++failure.failures;
    failure.request.event = event.index;
    failure.request.wanted = event.size;
    failure.device_free = event.device_free;
    failure.reserved = reserved;
    failure.lower = peak;
    failure.segment = SegmentFor(event.size, expandable);
    return true;
  });
  if (failure.failures == 0) return std::nullopt;
  failure.upper = failure.reserved + failure.segment;
  const UpToFailure part(log, failure.request.event);

  // Given only the memory that it had reserved, the recorded allocator fails at the same event. Its
  // state at that point completes `failure.request`.
  const auto recorded = make("pytorch", log, std::min(failure.lower, failure.upper - Bytes(1)));
  const Replayed as_recorded = ReplayLog(part, {{"pytorch", recorded.get(), true}});
  failure.bound = as_recorded.summary.lower_bound;
  if (const auto& failed = as_recorded.results[0].failure;
      failed && !failed->at_start && failed->event == failure.request.event) {
    failure.request = *failed;
  }

  // Bisect the memory that each allocator needs, between a size that does not suffice and the size
  // that it reserves in unlimited memory.
  std::vector<Bytes> serves(names.size()), fails(names.size(), failure.bound - kStep);
  const auto unlimited =
      Try(part, names, std::vector<Bytes>(names.size(), Bytes::Unlimited()), make);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!unlimited[i].fits()) continue;
    serves[i] = RoundUp(unlimited[i].peak_reserved, kStep);
  }
  const uint64_t a_round = as_recorded.summary.events * (names.size() + 1);
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
    const auto results = Try(part, tried, memories, make);
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
  for (size_t i = 0; i < names.size(); ++i) {
    failure.trials.push_back(
        {names[i], serves[i] > Bytes(0) ? std::optional(serves[i]) : std::nullopt});
  }
  std::stable_sort(failure.trials.begin(), failure.trials.end(), [](const auto& a, const auto& b) {
    return a.needed.value_or(Bytes::Unlimited()) < b.needed.value_or(Bytes::Unlimited());
  });
  return failure;
}

std::string FormatRecordedFailure(const RecordedFailure& failure) {
  const FailedRequest& request = failure.request;
  const auto mib = [](Bytes size) { return fmt::format("{:.0f} MiB", size.mib()); };
  std::string text = fmt::format(
      "\nrecorded out of memory at event {}{}: asked for {} ({} B, of the driver {}) with {} "
      "allocated and {} free in {} reserved, the largest piece {}\n",
      request.event, failure.failures > 1 ? fmt::format(", the last of {}", failure.failures) : "",
      mib(request.wanted), request.wanted.count(), mib(failure.segment),
      mib(request.stats.allocated), mib(failure.reserved - request.stats.allocated),
      mib(failure.reserved), mib(request.stats.largest_free));
  text +=
      fmt::format("  it had at least {} and less than {}", mib(failure.lower), mib(failure.upper));
  if (failure.device_free) {
    text += fmt::format("; the device had {} left{}", mib(*failure.device_free),
                        *failure.device_free >= failure.segment
                            ? ": the process was limited to less "
                              "(torch.cuda.set_per_process_memory_fraction)"
                            : "");
  }
  text += "\n  held by:\n";
  for (size_t i = 0; i < std::min(request.holders.size(), kShownHolders); ++i) {
    const FailedRequest::Holder& holder = request.holders[i];
    text +=
        fmt::format("    {:>10}  {} x {}, {}\n",
                    FormatBytes(Bytes(holder.size.count() * static_cast<int64_t>(holder.blocks))),
                    holder.blocks, FormatBytes(holder.size),
                    !holder.frame.empty() ? holder.frame
                    : holder.from_start == holder.blocks
                        ? "from before the log"
                        : fmt::format("since event {}, no frames recorded", holder.first_event));
  }
  if (request.holders.size() > kShownHolders) {
    text += fmt::format("    and {} other groups\n", request.holders.size() - kShownHolders);
  }
  text += "  up to and including the failed request:\n";
  for (const RecordedFailure::Trial& trial : failure.trials) {
    std::string verdict = "serves it in no memory tried";
    if (trial.needed && *trial.needed <= failure.lower) {
      verdict = fmt::format("fits: {} are enough", mib(*trial.needed));
    } else if (trial.needed && *trial.needed < failure.upper) {
      verdict = fmt::format("fits if there were {}", mib(*trial.needed));
    } else if (trial.needed) {
      verdict = fmt::format("does not fit: serves it in {}, {} to {} too much", mib(*trial.needed),
                            mib(*trial.needed - failure.upper + Bytes(1)),
                            mib(*trial.needed - failure.lower));
    }
    text += fmt::format("    {:<34}  {}\n", trial.allocator, verdict);
  }
  return text + fmt::format("    no allocator can with less than {} ({} B)\n", mib(failure.bound),
                            failure.bound.count());
}

void PutRecordedFailure(JsonWriter& json, const RecordedFailure& failure) {
  json.Key("recorded_failure").BeginObject().Put("event", failure.request.event);
  json.Put("failures", failure.failures).Put("wanted_bytes", failure.request.wanted);
  json.Put("segment_bytes", failure.segment);
  json.Put("allocated_bytes", failure.request.stats.allocated);
  json.Put("reserved_bytes", failure.reserved);
  json.Put("largest_free_bytes", failure.request.stats.largest_free);
  json.Put("device_free_bytes", failure.device_free);
  json.Put("capacity_at_least_bytes", failure.lower).Put("capacity_below_bytes", failure.upper);
  json.Put("lower_bound_bytes", failure.bound).Key("holders").BeginArray();
  for (const FailedRequest::Holder& holder : failure.request.holders) {
    json.BeginObject().Put("frame", IfAny(holder.frame)).Put("size_bytes", holder.size);
    json.Put("blocks", holder.blocks).Put("from_start", holder.from_start).EndObject();
  }
  json.EndArray().Key("trials").BeginArray();
  for (const RecordedFailure::Trial& trial : failure.trials) {
    json.BeginObject().Put("allocator", trial.allocator).Put("serves_in_bytes", trial.needed);
    json.Put("fits", !trial.needed || *trial.needed >= failure.upper ? std::optional(false)
                     : *trial.needed <= failure.lower                ? std::optional(true)
                                                                     : std::nullopt);
    json.EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace spillway
