#include "experiments/limit/smallest_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway {
namespace {

// No growth of an arena changes what happens in it.
constexpr Bytes kNoGrowth = Bytes::Unlimited();

// An arena while requests are replayed, watched for the least growth that could change a decision.
//
// The ends of blocks and gaps move with the top of the arena or not at all: blocks cut from the low
// end of the gap below the top keep their place, those cut from its high end move. So one gap, or
// the place where it was filled exactly, lies between the two kinds, and it alone grows with the
// arena; all other gaps keep their sizes, and the order of gaps by address never changes. A
// decision of an allocator that compares sizes with each other and with the request can therefore
// change only where the growing gap overtakes the size of another one, or of the request.
class WatchedArena {
 public:
  WatchedArena(Bytes capacity, Bytes granularity)
      : granularity_(granularity), gaps_{{Bytes(0), capacity}}, growing_(0) {}

  // Before a request of `rounded` bytes is made. Gaps too small for it play no part.
  void Watch(Bytes rounded) {
    const auto growing = gaps_.find(growing_);
    const Bytes size = growing == gaps_.end() ? Bytes(0) : growing->second;
    if (size < rounded) {
      least_ = std::min(least_, rounded - size);
      return;
    }
    for (const auto& [offset, other] : gaps_) {
      if (offset == growing_ || other < size) continue;
      // Equal sizes are decided by address, so the gap first draws level and then overtakes.
      least_ = std::min(least_, other > size ? other - size : granularity_);
    }
  }

  void Take(const Block& block) {
    const auto gap = std::prev(gaps_.upper_bound(block.offset));
    const auto [begin, size] = *gap;
    const Bytes end = begin + size;
    const bool growing = begin == growing_ && !filled_;
    gaps_.erase(gap);
    if (begin < block.offset) gaps_[begin] = block.offset - begin;
    if (block.end() < end) gaps_[block.end()] = end - block.end();
    if (!growing) return;
    // What is left of the growing gap grows. If nothing is, then which end of it the block was cut
    // from cannot be told, and only this size of the arena is like that.
    filled_ = begin == block.offset && block.end() == end;
    if (filled_) least_ = granularity_;
    growing_ = begin < block.offset ? begin : block.end();
  }

  void Give(const Block& block) {
    Bytes begin = block.offset, end = block.end();
    const auto next = gaps_.lower_bound(end);
    const bool joins_next = next != gaps_.end() && next->first == end;
    if (joins_next) {
      end += next->second;
      gaps_.erase(next);
    }
    const auto after = gaps_.lower_bound(begin);
    if (after != gaps_.begin()) {
      const auto previous = std::prev(after);
      if (previous->first + previous->second == begin) {
        begin = previous->first;
        gaps_.erase(previous);
      }
    }
    gaps_[begin] = end - begin;
    if (begin <= growing_ && growing_ <= end) {
      growing_ = begin;
      filled_ = false;
    }
  }

  // The least growth of the arena that could change a decision watched so far, or kNoGrowth.
  Bytes least_growth() const { return least_; }

 private:
  const Bytes granularity_;
  std::map<Bytes, Bytes> gaps_;  // offset, size; none touches another
  // The offset of the growing gap; where it is filled, the end of the last block that does not
  // move.
  Bytes growing_;
  bool filled_ = false;
  Bytes least_ = kNoGrowth;
};

class Pool {
 public:
  Pool(const AllocationLog& log, const std::string& allocator, Bytes alignment)
      : log_(log), allocator_(allocator), alignment_(alignment) {
    const std::string name = ParseSpecification("allocator", allocator).name;
    const auto made = MakeAllocator(allocator, Bytes::GiB(1), alignment);
    if (name != "best-fit" && name != "first-fit" && name != "high-end") {
      throw UsageError(fmt::format(
          "the smallest pool of '{}' is not defined (valid: best-fit, first-fit, high-end)", name));
    }
    granularity_ = made->Allocate(Bytes(1), Hint::kLow)->size;
  }

  Bytes aggregate() const { return log_.Peak(granularity_); }

  // 0 if a pool of that size serves the requests; else what the failing request lacked.
  Bytes Lacking(Bytes capacity) const {
    const auto arena = MakeAllocator(allocator_, capacity, alignment_);
    const auto failure = Replay(log_, *arena);
    return failure ? Rounded(failure->wanted) - failure->largest_free : Bytes(0);
  }

  // 0 if a pool of that size serves the requests; else the least growth with which it could, or
  // kNoGrowth.
  Bytes GrowthThatMatters(Bytes capacity) const {
    const auto arena = MakeAllocator(allocator_, capacity, alignment_);
    WatchedArena watched(capacity, granularity_);
    std::vector<Block> blocks(log_.blocks());
    for (const AllocationStep& step : log_.steps()) {
      if (step.free) {
        arena->Free(blocks[step.block]);
        watched.Give(blocks[step.block]);
        continue;
      }
      watched.Watch(Rounded(step.size));
      const auto block = arena->Allocate(step.size, step.hint);
      if (!block) return watched.least_growth();
      watched.Take(*block);
      blocks[step.block] = *block;
    }
    return Bytes(0);
  }

 private:
  Bytes Rounded(Bytes size) const { return RoundUp(std::max(size, Bytes(1)), granularity_); }

  const AllocationLog& log_;
  const std::string& allocator_;
  const Bytes alignment_;
  Bytes granularity_;
};

}  // namespace

std::optional<PoolSize> SearchPool(const AllocationLog& log, const std::string& allocator,
                                   Bytes alignment, Bytes start) {
  const Pool pool(log, allocator, alignment);
  PoolSize found{start, 1};
  for (Bytes lacking = pool.Lacking(start); lacking > Bytes(0); ++found.trials) {
    if (pool.GrowthThatMatters(found.size) == kNoGrowth) return std::nullopt;
    found.size += lacking;
    lacking = pool.Lacking(found.size);
  }
  return found;
}

std::optional<PoolSize> LeastPool(const AllocationLog& log, const std::string& allocator,
                                  Bytes alignment) {
  const Pool pool(log, allocator, alignment);
  PoolSize found{pool.aggregate(), 1};
  for (Bytes growth = pool.GrowthThatMatters(found.size); growth > Bytes(0); ++found.trials) {
    if (growth == kNoGrowth) return std::nullopt;
    found.size += growth;
    growth = pool.GrowthThatMatters(found.size);
  }
  return found;
}

AllocationLog RequestsOf(const Setup& setup, Policy& policy,
                         const std::function<bool(const Placement&)>& counted) {
  Setup unlimited = setup;
  unlimited.memory = Bytes::Unlimited();
  unlimited.allocator = "best-fit";
  return RequestsOf(Simulate(unlimited, policy).report, counted);
}

}  // namespace spillway
