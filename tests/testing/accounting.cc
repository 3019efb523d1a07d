#include "tests/testing/accounting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spillway::testing {
namespace {

bool Same(const MemoryStats& a, const MemoryStats& b) {
  return a.requested == b.requested && a.allocated == b.allocated && a.reserved == b.reserved &&
         a.largest_free == b.largest_free;
}

bool Persists(const Trace& trace, TensorId tensor) {
  if (tensor == kNoTensor) return true;  // reserved for the whole run
  const TensorKind kind = trace.tensor(tensor).kind;
  return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
}

}  // namespace

std::optional<Block> AccountingAllocator::Allocate(Bytes size, Hint hint) {
  const MemoryStats before = Stats();
  const Bytes largest = LargestFree(hint);
  const auto block = ForwardingAllocator::Allocate(size, hint);
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  NoteDriverCalls();
  if (!block) {
    NoteRefusal(before, largest, rounded);
    return block;
  }
  if (block->size < rounded || block->size.count() % granularity_.count() != 0) {
    Fail(fmt::format("{} bytes were rounded to {}", size.count(), block->size.count()));
  }
  pages_.ForEach(*block, [&](const Block& memory) {
    if (caching_) {
      for (Bytes at = RoundDown(memory.offset, caching_->page); at < memory.end();
           at += caching_->page) {
        if (!given_.contains(at.count())) Fail("a block lies where the driver gave no memory");
      }
    } else if (memory.offset < Bytes(0) || memory.end() > capacity_) {
      Fail("a block lies outside the arena");
    }
  });
  if (!pages_.empty()) {
    for (const auto& [offset, sizes] : live_) {
      if (pages_.Overlap(*block, {offset, sizes.first})) Fail("two live blocks share memory");
    }
  }
  const auto next = live_.lower_bound(block->offset);
  const bool before_next = next == live_.end() || block->end() <= next->first;
  const bool after_previous =
      next == live_.begin() ||
      std::prev(next)->first + std::prev(next)->second.first <= block->offset;
  if (!before_next || !after_previous) Fail("two live blocks overlap");
  live_[block->offset] = {block->size, size};
  calls_.push_back({true, *block, Stats().allocated});
  CompareSums();
  return block;
}

void AccountingAllocator::Free(const Block& block) {
  if (live_.erase(block.offset) == 0) {
    Fail("a block was given back that nobody holds");
    return;
  }
  ForwardingAllocator::Free(block);
  NoteDriverCalls();
  calls_.push_back({false, block, Stats().allocated});
  CompareSums();
}

void AccountingAllocator::NoteDriverCalls() {
  const auto calls = driver_calls();
  for (; driver_calls_ < calls.size(); ++driver_calls_) {
    pages_.Note(calls[driver_calls_]);
    if (caching_) NotePages(calls[driver_calls_]);
  }
}

void AccountingAllocator::NotePages(const DriverCall& call) {
  const bool takes = call.kind == DriverCall::Kind::kMalloc || call.kind == DriverCall::Kind::kMap;
  for (Bytes at = call.range.offset; at < call.range.end(); at += caching_->page) {
    const bool changed = takes ? given_.insert(at.count()).second : given_.erase(at.count()) == 1;
    if (!changed) Fail(takes ? "memory was taken twice" : "memory was given back twice");
  }
  if (call.kind == DriverCall::Kind::kMalloc) segments_[call.range.offset] = call.range.end();
  if (takes) return;
  segments_.erase(call.range.offset);
  const auto next = live_.lower_bound(call.range.end());
  if (next == live_.begin()) return;
  const auto& [offset, sizes] = *std::prev(next);
  if (offset + sizes.first > call.range.offset) Fail("memory was given back with a block in it");
}

void AccountingAllocator::NoteRefusal(const MemoryStats& before, Bytes largest, Bytes rounded) {
  const MemoryStats after = Stats();
  if (!caching_) {
    if (!Same(before, after)) Fail("a refused request changed the allocator");
    if (largest >= rounded) Fail("a request was refused that would have fitted");
    return;
  }
  if (before.requested != after.requested || before.allocated != after.allocated ||
      before.reserved < after.reserved) {
    Fail("a refused request changed the allocator");
  }
  for (const auto& [begin, end] : segments_) {
    const auto first = live_.lower_bound(begin);
    if (first == live_.end() || first->first >= end) {
      Fail("a request was refused while a segment lay idle");
    }
  }
  if (largest == rounded) Fail("the largest request that would succeed was refused");
  if (caching_->memory_for(rounded) <= capacity_ - after.reserved) {
    Fail("a request was refused for which the driver has memory");
  }
}

void AccountingAllocator::CompareSums() {
  Bytes allocated, requested;
  for (const auto& [offset, sizes] : live_) {
    allocated += sizes.first;
    requested += sizes.second;
  }
  const MemoryStats stats = Stats();
  if (allocated != stats.allocated || requested != stats.requested) {
    Fail(fmt::format("live blocks add up to {} ({} requested), the allocator says {} ({})",
                     allocated.count(), requested.count(), stats.allocated.count(),
                     stats.requested.count()));
  }
  if (stats.reserved < stats.allocated) Fail("less is reserved than allocated");
  if (!caching_) return;
  if (stats.reserved != caching_->page * static_cast<int64_t>(given_.size())) {
    Fail("other memory is reserved than the driver has given");
  }
  if (stats.reserved > capacity_) Fail("more is reserved than there is");
}

void AccountingAllocator::Compare(const Trace& trace, const Report& report, PoolId pool,
                                  std::vector<std::string>& violations) const {
  const auto fail = [&](std::string_view what) {
    violations.push_back(fmt::format("{}: {}", sim::Name(pool), what));
  };
  for (const std::string& violation : violations_) fail(violation);
  if (live() > 0) fail(fmt::format("{} blocks were not given back", live()));

  // Walk the log forwards: check its sums, its peak and the blocks held at its end.
  struct Entry {
    const Placement* placement;
    Bytes allocated;  // after this entry
  };
  std::vector<Entry> log;
  Bytes allocated, peak;
  std::vector<const Placement*> held;
  for (const Placement& placement : report.placements) {
    if (placement.pool != pool) continue;
    if (placement.kind == PlacementKind::kAllocate) {
      allocated += RoundUp(std::max(placement.block.size, Bytes(1)), granularity_);
      held.push_back(&placement);
    } else if (placement.kind == PlacementKind::kFree) {
      allocated = allocated - RoundUp(std::max(placement.block.size, Bytes(1)), granularity_);
      const auto freed = std::find_if(held.begin(), held.end(), [&](const Placement* other) {
        return other->tensor == placement.tensor && other->block == placement.block;
      });
      if (freed == held.end()) return fail("the log frees what is not held");
      held.erase(freed);
    } else {
      continue;
    }
    peak = std::max(peak, allocated);
    log.push_back({&placement, allocated});
  }
  if (report.fits()) {
    const bool only_persistent =
        std::all_of(held.begin(), held.end(),
                    [&](const Placement* placement) { return Persists(trace, placement->tensor); });
    if (!only_persistent) fail("something that does not persist is held at the end");
    if (pool == PoolId::kDevice && peak != report.metrics.peak_allocated)
      fail("the peak is not that of the log");
  }

  if (report.iterations == 0) return;  // the run ended in Plan, before an iteration had a log
  // Walk the log backwards in step with the calls. The last calls freed the blocks held at the end.
  if (calls_.size() < held.size()) return fail("fewer calls than blocks");
  size_t call = calls_.size() - held.size();
  size_t entry = log.size();
  while (entry > 0 && call > 0) {
    const Call& made = calls_[call - 1];
    const bool allocate = log[entry - 1].placement->kind == PlacementKind::kAllocate;
    if (made.allocate != allocate || !(made.block == log[entry - 1].placement->block) ||
        made.allocated != log[entry - 1].allocated) {
      break;
    }
    --call, --entry;
  }
  // The entries that match no call must stand for blocks held since before the iteration.
  for (size_t i = 0; i < entry; ++i) {
    const Placement& placement = *log[i].placement;
    if (placement.kind != PlacementKind::kAllocate || placement.commands > 0 ||
        !Persists(trace, placement.tensor)) {
      return fail(fmt::format("entry {} of the log is no call that was made", i));
    }
  }
  const Bytes from_before = entry == 0 ? Bytes(0) : log[entry - 1].allocated;
  if (call > 0 && calls_[call - 1].allocated != from_before) {
    fail("the log begins with other sums than the allocator had");
  }
}

}  // namespace spillway::testing
