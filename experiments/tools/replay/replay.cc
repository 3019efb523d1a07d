#include "experiments/tools/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/alloc/planned.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

using Kind = MemoryEvent::Kind;

constexpr size_t kBatch = 4096;

// A `LiveBlock` is the block with a certain number in the log.
struct LiveBlock {
  HeldBlock block;
  bool live = false;
};

template <typename Element>
Element& At(std::vector<Element>& elements, uint32_t index) {
  if (index >= elements.size()) elements.resize(index + 1);
  return elements[index];
}

// Returns the recorded roundup_power2_divisions, with an entry for every power of two from 1 MiB to
// 32 GiB.
std::string DivisionsOf(const PyTorchSettings& settings) {
  constexpr int64_t kLargest = 32768;  // MiB
  std::vector<std::string> entries;
  for (int64_t size = 1; size <= kLargest; size *= 2) {
    int64_t divisions = 0;
    for (const auto& [power, recorded] : settings.roundup_power2_divisions) {
      if (power == size) divisions = recorded;
    }
    entries.push_back(fmt::format("{}:{}", size, divisions));
  }
  return fmt::format("[{}]", fmt::join(entries, ","));
}

// A `Player` replays the log on one allocator.
class Player {
 public:
  // `last_failure` is the log's `LastFailure`.
  Player(const ReplayedAllocator& subject, const MemoryLogStart& start,
         std::optional<uint64_t> last_failure, size_t samples)
      : allocator_(*subject.allocator),
        last_failure_(last_failure),
        compares_(subject.compare && start.records_segments),
        follows_(compares_ && !subject.predict_frees),
        most_samples_(samples) {
    result_.allocator = subject.name;
    result_.compared = compares_;
    if (subject.memory != Bytes::Unlimited()) result_.memory = subject.memory;
  }

  bool failed() const { return result_.failure.has_value(); }
  ReplayResult& result() { return result_; }

  void Begin(const MemoryLogStart& start) {
    if (!start.records_segments) {
      for (const StartBlock& held : start.blocks) {
        allocator_.UseStream(held.stream);
        const auto block = allocator_.Allocate(held.size, Hint::kLow);
        if (!block) return FailAtStart(held.size, held.stream);
        Take(held.block, *block, held.size);
      }
    } else {
      auto held = start.blocks.begin();
      for (const StartSegment& segment : start.segments) {
        HeldSegment whole{AddressOf(segment.address),
                          segment.size,
                          segment.stream,
                          segment.small,
                          segment.expandable,
                          {}};
        const auto first = held;
        const uint64_t end = segment.address + static_cast<uint64_t>(segment.size.count());
        for (; held != start.blocks.end() && held->address < end; ++held) {
          whole.blocks.push_back({Bytes(static_cast<int64_t>(held->address - segment.address)),
                                  held->size, held->taken});
        }
        const auto blocks = allocator_.Adopt(whole);
        if (!blocks) return FailAtStart(segment.size, segment.stream);
        for (size_t i = 0; i < blocks->size(); ++i) {
          Take((first + static_cast<int64_t>(i))->block, (*blocks)[i], whole.blocks[i].requested);
        }
      }
      for (const StartSegment& segment : start.segments) recorded_ += segment.size;
    }
    allocator_.UseStream(stream_);  // the blocks of the start may be on other streams
    Grow();
    calls_ = allocator_.driver_calls().size();
  }

  void Play(const MemoryEvent& event) {
    switch (event.kind) {
      case Kind::kAllocate: {
        Use(event.stream);
        const auto block = allocator_.Allocate(event.size, Hint::kLow);
        ++result_.operations;
        if (!block) return Fail(event, event.size);
        Take(event.block, *block, event.size);
        Grow();
        Compare(event, &*block);
        break;
      }
      case Kind::kFree: {
        const Block& block = blocks_[event.block];
        allocator_.Free(block);
        ++result_.operations;
        allocated_ -= block.size;
        requested_ -= requested_of_[event.block];
        Compare(event, &block);
        break;
      }
      case Kind::kEmptyCache:
        if (!follows_) allocator_.EmptyCache();
        ++result_.operations;
        calls_ = allocator_.driver_calls().size();
        break;
      case Kind::kSegmentAllocate:
        recorded_ += event.size;
        if (result_.compared) allocator_.ExpectSegment({AddressOf(event.address), event.size});
        if (compares_) segments_.push_back({AddressOf(event.address), event.size});
        return;
      case Kind::kSegmentFree:
        recorded_ -= event.size;
        if (follows_ && !allocator_.GiveBack({AddressOf(event.address), event.size}) && compares_ &&
            !result_.deviates_at) {
          result_.deviates_at = event.index;
        }
        return;
      case Kind::kFailed:
        if (event.index == last_failure_) Try(event);
        return;
    }
    if (most_samples_ > 0) Sample(event);
  }

  void Finish() {
    if (window_ > 0) CloseWindow();
  }

 private:
  // Allocates and frees a request that failed when it was recorded.
  void Try(const MemoryEvent& event) {
    Use(event.stream);
    const auto block = allocator_.Allocate(event.size, Hint::kLow);
    ++result_.operations;
    if (!block) {
      Fail(event, event.size);
      result_.failure->recorded = true;
      return;
    }
    // With the recorded memory, the request should have failed.
    if (follows_ && result_.memory && !result_.deviates_at) result_.deviates_at = event.index;
    compares_ = false;
    requested_ += event.size;
    allocated_ += block->size;
    Grow();
    if (most_samples_ > 0) Sample(event);
    requested_ -= event.size;
    allocated_ -= block->size;
    allocator_.Free(*block);
    ++result_.operations;
  }

  void Use(uint64_t stream) {
    if (stream == stream_) return;
    stream_ = stream;
    allocator_.UseStream(stream);
  }

  void Take(uint32_t number, const Block& block, Bytes requested) {
    requested_ += requested;
    allocated_ += block.size;
    At(blocks_, number) = block;
    At(requested_of_, number) = requested;
  }

  void Grow() {
    result_.peak_requested = std::max(result_.peak_requested, requested_);
    result_.peak_allocated = std::max(result_.peak_allocated, allocated_);
    result_.peak_reserved = std::max(result_.peak_reserved, allocator_.Reserved());
  }

  void FailAtStart(Bytes wanted, uint64_t stream) {
    MemoryEvent event;
    event.stream = stream;
    Fail(event, wanted);
    result_.failure->at_start = true;
  }

  void Fail(const MemoryEvent& event, Bytes wanted) {
    result_.failure =
        FailedRequest{event.index, false, wanted, event.stream, allocator_.Stats(), {}, {}, false};
  }

  static Bytes AddressOf(uint64_t address) { return Bytes(static_cast<int64_t>(address)); }

  // Compares the segments, the reserved memory and the address of the block with the log after a
  // request or a free. Records the first event at which they differ.
  void Compare(const MemoryEvent& event, const Block* block) {
    if (!compares_) return;
    const auto calls = allocator_.driver_calls();
    size_t taken = 0;
    bool same = block->offset == AddressOf(event.address);
    for (; calls_ < calls.size(); ++calls_) {
      const DriverCall::Kind kind = calls[calls_].kind;
      if (kind != DriverCall::Kind::kMalloc && kind != DriverCall::Kind::kMap) continue;
      same &= taken < segments_.size() && segments_[taken] == calls[calls_].range;
      ++taken;
    }
    same &= taken == segments_.size() && allocator_.Reserved() == recorded_;
    result_.segments += taken;
    segments_.clear();
    if (!same && !result_.deviates_at) result_.deviates_at = event.index;
  }

  void Sample(const MemoryEvent& event) {
    if (window_ == 0 || requested_ > best_.requested) {
      best_ = {event.index, event.time, requested_, allocated_, allocator_.Reserved(), {}};
    }
    if (++window_ == per_sample_) CloseWindow();
  }

  void CloseWindow() {
    window_ = 0;
    // `Stats` may be slow, so that it is called only once, at the end of the window.
    if (result_.memory) best_.largest_free = allocator_.Stats().largest_free;
    result_.samples.push_back(best_);
    if (result_.samples.size() < most_samples_) return;
    auto& samples = result_.samples;
    for (size_t i = 0; i + 1 < samples.size(); i += 2) {
      samples[i / 2] =
          samples[i + 1].requested > samples[i].requested ? samples[i + 1] : samples[i];
    }
    if (samples.size() % 2 != 0) samples[samples.size() / 2] = samples.back();
    samples.resize((samples.size() + 1) / 2);
    per_sample_ *= 2;
  }

  ReplayableAllocator& allocator_;
  ReplayResult result_;
  std::vector<Block> blocks_;        // by block number
  std::vector<Bytes> requested_of_;  // by block number
  Bytes requested_, allocated_;
  uint64_t stream_ = 0;

  const std::optional<uint64_t> last_failure_;
  bool compares_;
  const bool follows_;
  size_t calls_ = 0;             // the number of driver calls already compared
  Bytes recorded_;               // reserved memory according to the log
  std::vector<Block> segments_;  // segments recorded since the last request

  const size_t most_samples_;
  uint64_t per_sample_ = 1;  // events per sample
  uint64_t window_ = 0;      // events in the current sample
  ReplaySample best_;        // the event with the most requested bytes in the current sample
};

// A `Ledger` tracks the live blocks of the log and their sums.
class Ledger {
 public:
  // With `options.holders`, the ledger keeps the blocks that are live at the last failure.
  Ledger(const MemoryLog& log, std::optional<uint64_t> last_failure, const ReplayOptions& options)
      : log_(log), last_failure_(last_failure), holders_(options.holders) {
    summary_.unit = options.unit;
    const MemoryLogStart& start = log.start();
    for (const StartBlock& held : start.blocks) Add(held.block, {held.size, 0, true, 0});
    if (!start.records_segments) return;
    for (const StartSegment& segment : start.segments) reserved_ += segment.size;
    summary_.recorded_peak_reserved = reserved_;
  }

  const LogSummary& summary() const { return summary_; }
  std::vector<HeldBlock> TakeHeldAtFailure() { return std::move(held_at_failure_); }

  void Play(const MemoryEvent& event) {
    summary_.records = std::max(summary_.records, event.index + 1);
    switch (event.kind) {
      case Kind::kAllocate:
        ++summary_.events;
        ++summary_.allocations;
        Add(event.block, {event.size, event.index, false, 0});
        break;
      case Kind::kFree: {
        ++summary_.events;
        LiveBlock& freed = blocks_[event.block];
        freed.live = false;
        live_ -= Rounded(freed.block.size);
        requested_ -= freed.block.size;
        --count_;
        break;
      }
      case Kind::kEmptyCache:
        ++summary_.events;
        break;
      case Kind::kSegmentAllocate:
        reserved_ += event.size;
        if (summary_.recorded_peak_reserved) {
          summary_.recorded_peak_reserved = std::max(*summary_.recorded_peak_reserved, reserved_);
        }
        break;
      case Kind::kSegmentFree:
        reserved_ -= event.size;
        break;
      case Kind::kFailed:
        if (event.index == last_failure_) Try(event);
        break;
    }
  }

  // Returns the blocks that are live now, as `FailedRequest::held`.
  std::vector<HeldBlock> Held() const {
    std::vector<HeldBlock> all;
    for (uint32_t number = 0; number < blocks_.size(); ++number) {
      if (!blocks_[number].live) continue;
      HeldBlock& held = all.emplace_back(blocks_[number].block);
      held.stack = held.from_start ? log_.StackOfStart(number) : log_.StackOf(held.event);
    }
    std::ranges::stable_sort(
        all, {}, [](const HeldBlock& held) { return std::pair(!held.from_start, held.event); });
    return all;
  }

  // Adds the blocks that are live now to the failure, if there is one and they are asked for.
  void Describe(std::optional<FailedRequest>& failure) const {
    if (!failure || !holders_) return;
    failure->held = Held();
    failure->holders = Holders(failure->held);
  }

 private:
  // Returns groups of blocks, most bytes first.
  std::vector<FailedRequest::Holder> Holders(const std::vector<HeldBlock>& held) const {
    std::map<uint32_t, std::string> frames;  // by number of the stack
    std::map<std::pair<std::string, Bytes>, FailedRequest::Holder> groups;
    for (const HeldBlock& block : held) {
      const auto [frame, added] = frames.try_emplace(block.stack);
      const StackFrame* const requester = added ? RequesterOf(log_.stack(block.stack)) : nullptr;
      if (requester != nullptr) frame->second = TextOf(*requester);
      FailedRequest::Holder& holder = groups[{frame->second, block.size}];
      holder.frame = frame->second;
      holder.size = block.size;
      ++holder.blocks;
      if (block.from_start) {
        ++holder.from_start;
        continue;
      }
      const bool first = holder.blocks - holder.from_start == 1;
      holder.first_event = first ? block.event : std::min(holder.first_event, block.event);
      holder.last_event = first ? block.event : std::max(holder.last_event, block.event);
    }
    std::vector<FailedRequest::Holder> holders;
    for (const auto& [key, holder] : groups) holders.push_back(holder);
    const auto total = [](const FailedRequest::Holder& holder) {
      return static_cast<Int128>(holder.size.count()) * holder.blocks;
    };
    std::stable_sort(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
      return total(a) != total(b) ? total(a) > total(b) : a.size > b.size;
    });
    return holders;
  }

  Bytes Rounded(Bytes size) const { return RoundUp(std::max(size, Bytes(1)), summary_.unit); }

  // Accounts for a request that failed when it was recorded.
  void Try(const MemoryEvent& event) {
    ++summary_.events;
    ++summary_.allocations;
    summary_.failed_event = event.index;
    summary_.failed_size = event.size;
    if (holders_) held_at_failure_ = Held();
    CountPeak(event.size, event.index);
  }

  void Add(uint32_t number, const HeldBlock& block) {
    At(blocks_, number) = {block, true};
    CountPeak(block.size, block.event);
    live_ += Rounded(block.size);
    requested_ += block.size;
    ++count_;
  }

  // Raises the peaks to the live blocks and one more, which `event` allocates.
  void CountPeak(Bytes size, uint64_t event) {
    const Bytes live = live_ + Rounded(size);
    if (live > Bytes::Unlimited()) {
      throw InputError(fmt::format("event {}: more than 1 EiB is live", event));
    }
    summary_.lower_bound = std::max(summary_.lower_bound, live);
    summary_.peak_requested = std::max(summary_.peak_requested, requested_ + size);
    summary_.peak_blocks = std::max(summary_.peak_blocks, count_ + 1);
  }

  const MemoryLog& log_;
  const std::optional<uint64_t> last_failure_;
  const bool holders_;
  std::vector<HeldBlock> held_at_failure_;
  LogSummary summary_;
  std::vector<LiveBlock> blocks_;
  Bytes live_, requested_, reserved_;
  uint64_t count_ = 0;
};

// A `PlannedPlaces` allocator gives each request, in order, a place that was planned in advance.
class PlannedPlaces final : public ReplayableAllocator {
 public:
  PlannedPlaces(std::vector<Block> places, Bytes capacity)
      : places_(std::move(places)), capacity_(capacity) {}

  std::string_view Name() const override { return "planned"; }

  std::optional<Block> Allocate(Bytes size, Hint) override {
    if (next_ == places_.size() || places_[next_].end() > capacity_) return std::nullopt;
    Block block = places_[next_];
    block.handle = static_cast<uint32_t>(next_++);
    requested_of_.push_back(size);
    requested_ += size;
    allocated_ += block.size;
    reserved_ = std::max(reserved_, block.end());
    return block;
  }
  void Free(const Block& block) override {
    requested_ -= requested_of_[block.handle];
    allocated_ -= block.size;
  }
  // The largest free piece is the place of the next request, because no other request can succeed.
  MemoryStats Stats() const override {
    const bool fits = next_ < places_.size() && places_[next_].end() <= capacity_;
    return {requested_, allocated_, reserved_, fits ? places_[next_].size : Bytes(0)};
  }
  Bytes Reserved() const override { return reserved_; }

 private:
  const std::vector<Block> places_;
  const Bytes capacity_;
  size_t next_ = 0;
  std::vector<Bytes> requested_of_;  // by request
  Bytes requested_, allocated_, reserved_;
};

}  // namespace

std::unique_ptr<ReplayableAllocator> PlannedFor(const MemoryLog& log, Bytes capacity,
                                                PackingOptions options) {
  std::vector<LiveInterval> intervals;
  std::vector<size_t> interval_of;  // by block number
  int64_t now = 0;
  Bytes live;
  const auto rounded = [&](Bytes size) {
    return RoundUp(std::max(size, Bytes(1)), options.granularity);
  };
  // Returns false if no plan can serve the request. Then the requests before it are planned.
  const auto begin = [&](uint32_t block, Bytes size) {
    live += rounded(size);
    if (live > capacity) return false;
    At(interval_of, block) = intervals.size();
    intervals.push_back({now, -1, size});
    return true;
  };
  const std::optional<uint64_t> last_failure = log.LastFailure();
  const auto play = [&](const MemoryEvent& event) {
    ++now;
    if (event.kind == Kind::kAllocate) return begin(event.block, event.size);
    if (event.kind == Kind::kFree) {
      LiveInterval& interval = intervals[interval_of[event.block]];
      interval.end = now;
      live -= rounded(interval.size);
    }
    if (event.kind == Kind::kFailed && event.index == last_failure) {
      if (live + rounded(event.size) > capacity) return false;
      intervals.push_back({now, now + 1, event.size});
    }
    return true;
  };
  if (std::ranges::all_of(log.start().blocks,
                          [&](const StartBlock& held) { return begin(held.block, held.size); })) {
    log.Walk(play);
  }
  ++now;
  for (LiveInterval& interval : intervals) {
    if (interval.end < 0) interval.end = now + 1;
  }
  options.memory = capacity;
  const Packing packing =
      Pack(intervals, options, OnlinePlacements(intervals, options.granularity));
  std::vector<Block> places;
  for (size_t i = 0; i < intervals.size(); ++i) {
    places.push_back({packing.offsets[i], rounded(intervals[i].size)});
  }
  return std::make_unique<PlannedPlaces>(std::move(places), capacity);
}

std::string PyTorchAsRecorded(const MemoryLog& log) {
  const auto& settings = log.start().pytorch;
  if (!settings) {
    const bool expandable = std::ranges::any_of(log.start().segments, &StartSegment::expandable);
    return expandable ? "pytorch:expandable_segments=true" : "pytorch";
  }
  std::vector<std::string> given;
  if (settings->max_split_size) {
    given.push_back(fmt::format("max_split_size={}B", settings->max_split_size->count()));
  }
  if (settings->large_segment_size) {
    given.push_back(fmt::format("large_segment_size={}B", settings->large_segment_size->count()));
  }
  if (settings->expandable_segments) given.push_back("expandable_segments=true");
  if (!settings->roundup_power2_divisions.empty()) {
    given.push_back(fmt::format("roundup_power2_divisions={}", DivisionsOf(*settings)));
  }
  if (settings->max_non_split_rounding) {
    given.push_back(
        fmt::format("max_non_split_rounding={}B", settings->max_non_split_rounding->count()));
  }
  if (settings->garbage_collection_threshold > 0) {
    given.push_back(
        fmt::format("garbage_collection_threshold={}", settings->garbage_collection_threshold));
  }
  return given.empty() ? "pytorch" : fmt::format("pytorch:{}", fmt::join(given, ","));
}

Replayed ReplayLog(const MemoryLog& log, const std::vector<ReplayedAllocator>& allocators,
                   const ReplayOptions& options) {
  const MemoryLogStart& start = log.start();
  const std::optional<uint64_t> last_failure = log.LastFailure();
  Ledger ledger(log, last_failure, options);
  std::vector<Player> players;
  players.reserve(allocators.size());
  for (const ReplayedAllocator& subject : allocators) {
    Player& player = players.emplace_back(subject, start, last_failure, options.samples);
    player.Begin(start);
    ledger.Describe(player.result().failure);
    if (options.clock) player.result().nanoseconds = 0;
  }

  std::vector<MemoryEvent> batch;
  batch.reserve(kBatch);
  // Runs a batch of events on each allocator that has not failed, then on the ledger. If an
  // allocator fails within the batch, its failure gets the holders from the ledger at that event.
  const auto play = [&] {
    std::vector<std::pair<size_t, Player*>> failures;  // position in the batch
    for (Player& player : players) {
      if (player.failed()) continue;
      const int64_t before = options.clock ? options.clock() : 0;
      for (size_t i = 0; i < batch.size(); ++i) {
        player.Play(batch[i]);
        if (player.failed()) {
          failures.emplace_back(i, &player);
          break;
        }
      }
      if (options.clock) *player.result().nanoseconds += options.clock() - before;
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      for (const auto& [at, player] : failures) {
        if (at == i) ledger.Describe(player->result().failure);
      }
      ledger.Play(batch[i]);
    }
    batch.clear();
  };

  log.Walk([&](const MemoryEvent& event) {
    batch.push_back(event);
    if (batch.size() == kBatch) play();
    return true;
  });
  play();
  for (Player& player : players) player.Finish();

  Replayed replayed{ledger.summary(), {}, ledger.TakeHeldAtFailure()};
  for (Player& player : players) replayed.results.push_back(std::move(player.result()));
  return replayed;
}

}  // namespace spillway::lab
