#include "sim/alloc/pytorch.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

constexpr Bytes kGranule(512);
constexpr Bytes kLargestSmall = Bytes::MiB(1);
constexpr Bytes kSmallSegment = Bytes::MiB(2);
constexpr Bytes kOwnSegment = Bytes::MiB(10);  // from this size on, each request gets a segment
constexpr Bytes kPage = Bytes::MiB(2);
constexpr uint64_t kFirstDivisions = uint64_t{1} << 20;  // the size of the first entry
// This many addresses never run out before memory does.
constexpr Bytes kAddressSpace = Bytes::GiB(int64_t{1} << 24);
constexpr Bytes kAboveRecorded(int64_t{1} << 61);

}  // namespace

PyTorch::PyTorch(Bytes capacity, const Options& options)
    : capacity_(capacity), options_(options), addresses_(kAddressSpace, kPage) {
  first_pools_[0] = 0;
  AddPools();
}

void PyTorch::AddPools() {
  for (const bool small : {true, false}) {
    pools_.emplace_back().page =
        small ? kSmallSegment : RoundUp(options_.large_segment_size, kPage);
  }
}

Bytes PyTorch::SegmentFor(Bytes size) const {
  if (size <= kLargestSmall) return kSmallSegment;
  return size < kOwnSegment ? options_.large_segment_size : RoundUp(size, kPage);
}

void PyTorch::UseStream(uint64_t stream) {
  const auto [found, added] = first_pools_.emplace(stream, static_cast<uint32_t>(pools_.size()));
  first_pool_ = found->second;
  if (added) AddPools();
}

template <typename Predicate>
std::vector<uint32_t> PyTorch::Select(Predicate wanted) const {
  std::vector<uint32_t> selected;
  for (uint32_t chunk = 0; chunk < chunks_.end(); ++chunk) {
    if (wanted(chunk)) selected.push_back(chunk);
  }
  std::sort(selected.begin(), selected.end(),
            [&](uint32_t a, uint32_t b) { return chunks_[a].offset < chunks_[b].offset; });
  return selected;
}

// --- Blocks -------------------------------------------------------------------------------------

void PyTorch::SetPool(uint32_t chunk, uint32_t pool) {
  if (chunk >= pool_of_.size()) pool_of_.resize(chunk + 1);
  pool_of_[chunk] = pool;
}

uint32_t PyTorch::CutLow(uint32_t chunk, Bytes size) {
  const uint32_t low = chunks_.CutLow(chunk, size);
  SetPool(low, pool_of_[chunk]);
  return low;
}

void PyTorch::AddFree(uint32_t chunk) {
  chunks_[chunk].requested = ChunkList::kFree;
  if (chunk >= free_since_.size()) free_since_.resize(chunk + 1);
  free_since_[chunk] = searches_;
  PoolOf(chunk).free.Insert(chunks_.AsFree(chunk));
}

void PyTorch::RemoveFree(uint32_t chunk) { PoolOf(chunk).free.Erase(chunks_.AsFree(chunk)); }

void PyTorch::AddMerged(uint32_t chunk) {
  AddFree(chunks_.JoinFree(chunk, [this](uint32_t free) { RemoveFree(free); }));
}

bool PyTorch::ShouldSplit(Bytes block, Bytes size, bool small) const {
  const Bytes rest = block - size;
  if (small || options_.expandable_segments) return rest >= kGranule;
  return size < options_.max_split_size && rest > kLargestSmall;
}

Bytes PyTorch::Rounded(Bytes size) const {
  const auto floor = std::bit_floor(static_cast<uint64_t>(size.count()));
  const auto& all = options_.roundup_power2_divisions;
  const size_t entry = static_cast<size_t>(std::bit_width(floor / kFirstDivisions));
  const int64_t divisions = all[std::clamp<size_t>(entry, 1, all.size()) - 1];
  if (divisions <= 1 || size <= kGranule * divisions) {
    return RoundUp(std::max(size, Bytes(1)), kGranule);
  }
  return RoundUp(size, Bytes(static_cast<int64_t>(floor) / divisions));
}

std::optional<Block> PyTorch::Allocate(Bytes size, Hint) {
  const Bytes rounded = Rounded(size);
  const uint32_t pool = PoolFor(rounded <= kLargestSmall);
  if (!IsSmall(pool)) ++searches_;
  uint32_t chunk = TakeCached(rounded, pool);
  if (chunk == ChunkList::kNone) {
    if (options_.garbage_collection_threshold > 0) CollectGarbage();
    chunk = TakeNew(rounded, pool);
  }
  if (chunk == ChunkList::kNone && ReleaseOversized(rounded, pool)) chunk = TakeNew(rounded, pool);
  if (chunk == ChunkList::kNone) {
    ReleaseAll();
    chunk = TakeNew(rounded, pool);
  }
  if (chunk == ChunkList::kNone) return std::nullopt;
  return Take(chunk, size);
}

Block PyTorch::Take(uint32_t chunk, Bytes requested) {
  const Bytes rounded = Rounded(requested);
  if (ShouldSplit(chunks_[chunk].size, rounded, IsSmall(pool_of_[chunk]))) {
    const uint32_t taken = CutLow(chunk, rounded);
    AddFree(chunk);
    chunk = taken;
  }
  chunks_[chunk].requested = requested.count();
  requested_ += requested;
  allocated_ += chunks_[chunk].size;
  return {chunks_[chunk].offset, chunks_[chunk].size, chunk};
}

std::optional<std::vector<Block>> PyTorch::Adopt(const HeldSegment& segment) {
  if (options_.expandable_segments != segment.expandable) {
    return ReplayableAllocator::Adopt(segment);
  }
  UseStream(segment.stream);
  std::vector<Block> blocks;
  const uint32_t pool = PoolFor(segment.small);
  if (segment.expandable && !pools_[pool].base) AddRange(pool, segment.address);
  if (segment.size == Bytes(0)) return blocks;
  uint32_t rest = segment.expandable ? MapAt(segment.address, segment.size, pool)
                                     : AddSegment(segment.size, pool, segment.address);
  if (rest == ChunkList::kNone) return std::nullopt;
  const Bytes begin = chunks_[rest].offset;
  for (size_t i = 0; i < segment.blocks.size(); ++i) {
    const HeldSegment::Held& held = segment.blocks[i];
    if (const Bytes before = begin + held.offset - chunks_[rest].offset; before > Bytes(0)) {
      AddFree(CutLow(rest, before));
    }
    // If the size is unknown, the block reaches to the next block; a rest that could not have been
    // split off belongs to this block.
    const Bytes next = i + 1 < segment.blocks.size() ? segment.blocks[i + 1].offset : segment.size;
    const Bytes size = held.taken > Bytes(0) ? held.taken : next - held.offset;
    const uint32_t chunk = size < chunks_[rest].size ? CutLow(rest, size) : rest;
    blocks.push_back(Take(chunk, held.requested));
    if (chunk == rest) return blocks;
  }
  AddFree(rest);
  return blocks;
}

void PyTorch::Free(const Block& block) {
  chunks_.CheckTaken(block);
  requested_ -= Bytes(chunks_[block.handle].requested);
  allocated_ -= block.size;
  AddMerged(block.handle);
}

// --- Where memory comes from --------------------------------------------------------------------

uint32_t PyTorch::TakeCached(Bytes size, uint32_t pool) {
  SizeBins& free = pools_[pool].free;
  auto fit = free.BestFit(size);
  if (!fit) return ChunkList::kNone;
  if (options_.expandable_segments) {
    const auto can_be = [&](const FreeBlock& block) {
      const uint32_t next = chunks_[block.chunk].next;
      const bool grows =
          next != ChunkList::kNone && chunks_[next].requested == ChunkList::kUnmapped;
      return grows ? block.size + chunks_[next].size : block.size;
    };
    while (const auto next = free.BestFit(fit->size, fit->offset + Bytes(1))) {
      if (can_be(*next) >= can_be(*fit)) break;
      fit = next;
    }
  }
  const bool oversized = fit->size >= options_.max_split_size;
  if (oversized && size < options_.max_split_size) return ChunkList::kNone;
  if (oversized && fit->size >= size + options_.max_non_split_rounding) return ChunkList::kNone;
  free.Erase(*fit);
  return fit->chunk;
}

uint32_t PyTorch::TakeNew(Bytes size, uint32_t pool) {
  return options_.expandable_segments ? TakeExpanded(size, pool) : TakeSegment(size, pool);
}

uint32_t PyTorch::TakeSegment(Bytes size, uint32_t pool) {
  return AddSegment(SegmentFor(size), pool, TakeExpected(SegmentFor(size)));
}

std::optional<Bytes> PyTorch::TakeExpected(Bytes size) {
  for (auto at = expected_.begin(); at != expected_.end(); ++at) {
    if (at->size != size) continue;
    const Bytes address = at->offset;
    expected_.erase(expected_.begin(), at + 1);  // the segments expected before it will not come
    return address;
  }
  return std::nullopt;
}

uint32_t PyTorch::AddSegment(Bytes segment, uint32_t pool, std::optional<Bytes> address) {
  if (segment > capacity_ - reserved_) return ChunkList::kNone;
  Segment added{segment, std::nullopt};
  if (address) {
    recorded_ = true;
    const auto next = segments_.lower_bound(*address);
    const bool overlaps = (next != segments_.end() && next->first < *address + segment) ||
                          (next != segments_.begin() &&
                           std::prev(next)->first + std::prev(next)->second.size > *address);
    if (overlaps) address.reset();
  }
  if (!address) {
    added.made_up = addresses_.Allocate(segment, Hint::kLow);
    if (!added.made_up) return ChunkList::kNone;
    address = added.made_up->offset + (recorded_ ? kAboveRecorded : Bytes(0));
  }
  segments_.emplace(*address, added);
  reserved_ += segment;
  Log(DriverCall::Kind::kMalloc, *address, segment);
  const uint32_t chunk = chunks_.AddSegment(*address, segment);
  SetPool(chunk, pool);
  return chunk;
}

void PyTorch::AddRange(uint32_t pool, std::optional<Bytes> base) {
  // The range has twice the memory's size, so that memory runs out before addresses do.
  const Bytes size =
      RoundUp(2 * std::min(capacity_, Bytes::GiB(int64_t{1} << 20)), pools_[pool].page);
  if (!base) {
    const auto range = addresses_.Allocate(size, Hint::kLow);
    if (!range) return;  // there are too many streams for the addresses
    base = range->offset + (recorded_ ? kAboveRecorded : Bytes(0));
  } else {
    recorded_ = true;
  }
  pools_[pool].base = base;
  const uint32_t chunk = chunks_.AddSegment(*base, size);
  SetPool(chunk, pool);
  chunks_[chunk].requested = ChunkList::kUnmapped;
  pools_[pool].unmapped.Insert(chunks_.AsFree(chunk));
}

uint32_t PyTorch::MapAt(Bytes address, Bytes size, uint32_t index) {
  AddressOrder& unmapped = pools_[index].unmapped;
  if (size > capacity_ - reserved_ || unmapped.empty()) return ChunkList::kNone;
  const uint32_t rest = unmapped.Last().chunk;
  const Bytes before = address - chunks_[rest].offset;
  if (before < Bytes(0) || before + size >= chunks_[rest].size) return ChunkList::kNone;
  unmapped.Erase(chunks_.AsFree(rest));
  if (before > Bytes(0)) {
    const uint32_t hole = CutLow(rest, before);
    chunks_[hole].requested = ChunkList::kUnmapped;
    unmapped.Insert(chunks_.AsFree(hole));
  }
  const uint32_t mapped = CutLow(rest, size);
  unmapped.Insert(chunks_.AsFree(rest));
  reserved_ += size;
  Log(DriverCall::Kind::kMap, address, size);
  return mapped;
}

// Takes the lowest run of free and unmapped chunks that is long enough and not entirely mapped.
uint32_t PyTorch::TakeExpanded(Bytes size, uint32_t index) {
  if (!pools_[index].base && capacity_ >= kSmallSegment) AddRange(index, std::nullopt);
  const AddressOrder& unmapped = pools_[index].unmapped;
  const auto usable = [&](uint32_t chunk) {
    return chunk != ChunkList::kNone && !chunks_[chunk].taken();
  };
  for (auto hole = unmapped.Begin(); hole != unmapped.End(); hole = unmapped.Next(hole)) {
    uint32_t chunk = unmapped.At(hole).chunk;
    if (usable(chunks_[chunk].previous)) chunk = chunks_[chunk].previous;
    Bytes length, missing;
    for (uint32_t at = chunk; usable(at) && length < size; at = chunks_[at].next) {
      if (!chunks_[at].free()) missing += ToMap(at, size - length);
      length += chunks_[at].size;
    }
    if (length < size) continue;
    if (missing > capacity_ - reserved_) return ChunkList::kNone;
    if (!chunks_[chunk].free()) chunk = Map(chunk, size);
    while (chunks_[chunk].size < size) {
      chunk = Map(chunks_[chunk].next, size - chunks_[chunk].size);
    }
    RemoveFree(chunk);
    return chunk;
  }
  return ChunkList::kNone;
}

Bytes PyTorch::ToMap(uint32_t chunk, Bytes size) const {
  const Bytes page = pools_[pool_of_[chunk]].page;
  return std::min(RoundUp(size, page), chunks_[chunk].size);
}

uint32_t PyTorch::Map(uint32_t chunk, Bytes size) {
  Pool& pool = PoolOf(chunk);
  const Bytes mapped = ToMap(chunk, size);
  reserved_ += mapped;
  Log(DriverCall::Kind::kMap, chunks_[chunk].offset, mapped);
  pool.unmapped.Erase(chunks_.AsFree(chunk));
  uint32_t low = chunk;
  if (mapped < chunks_[chunk].size) {
    low = CutLow(chunk, mapped);
    pool.unmapped.Insert(chunks_.AsFree(chunk));
  }
  const uint32_t previous = chunks_.FreePrevious(low);
  AddMerged(low);
  return previous != ChunkList::kNone ? previous : low;
}

// --- Where it goes back to ----------------------------------------------------------------------

void PyTorch::ReleaseSegment(uint32_t chunk) {
  RemoveFree(chunk);
  const auto segment = segments_.find(chunks_[chunk].offset);
  SPILLWAY_CHECK(segment != segments_.end());
  Log(DriverCall::Kind::kFree, segment->first, segment->second.size);
  reserved_ -= segment->second.size;
  if (segment->second.made_up) addresses_.Free(*segment->second.made_up);
  segments_.erase(segment);
  chunks_.RemoveSegment(chunk);
}

bool PyTorch::GiveBack(const Block& range) {
  const auto given = Select([&](uint32_t chunk) {
    if (!chunks_[chunk].free()) return false;
    if (options_.expandable_segments) return WholePages(chunk) == range;
    return IsIdle(chunk) && chunks_[chunk].offset == range.offset &&
           chunks_[chunk].size == range.size;
  });
  for (const uint32_t chunk : given) {
    options_.expandable_segments ? UnmapPages(chunk) : ReleaseSegment(chunk);
  }
  return !given.empty();
}

void PyTorch::CollectGarbage() {
  if (options_.expandable_segments) return;
  const auto threshold = static_cast<int64_t>(options_.garbage_collection_threshold *
                                              static_cast<double>(capacity_.count()));
  const auto age = [&](uint32_t chunk) { return searches_ - free_since_[chunk]; };
  if (reserved_ <= Bytes(threshold)) return;
  std::vector<uint32_t> idle =
      Select([&](uint32_t chunk) { return IsIdle(chunk) && !IsSmall(pool_of_[chunk]); });
  int64_t total = 0;
  for (const uint32_t chunk : idle) total += age(chunk);
  while (reserved_ > Bytes(threshold) && !idle.empty()) {
    const double mean = static_cast<double>(total) / static_cast<double>(idle.size());
    const size_t released = std::erase_if(idle, [&](uint32_t chunk) {
      if (static_cast<double>(age(chunk)) < mean) return false;
      total -= age(chunk);
      ReleaseSegment(chunk);
      return true;
    });
    SPILLWAY_CHECK(released > 0);  // the oldest segment is no younger than the mean
  }
}

bool PyTorch::ReleaseOversized(Bytes size, uint32_t pool) {
  if (options_.max_split_size == Bytes::Unlimited() || options_.expandable_segments) return false;
  const Bytes wanted = std::max(size, options_.max_split_size);
  std::vector<uint32_t> oversized = Select([&](uint32_t chunk) {
    return IsIdle(chunk) && pool_of_[chunk] == pool &&
           chunks_[chunk].size >= options_.max_split_size;
  });
  std::stable_sort(oversized.begin(), oversized.end(),
                   [&](uint32_t a, uint32_t b) { return chunks_[a].size < chunks_[b].size; });
  const auto enough = std::find_if(oversized.begin(), oversized.end(),
                                   [&](uint32_t chunk) { return chunks_[chunk].size >= wanted; });
  if (enough != oversized.end()) {
    ReleaseSegment(*enough);
    return true;
  }
  Bytes released;
  for (; released < wanted && !oversized.empty(); oversized.pop_back()) {
    released += chunks_[oversized.back()].size;
    ReleaseSegment(oversized.back());
  }
  return released >= wanted;
}

void PyTorch::ReleaseAll() {
  if (options_.expandable_segments) {
    const auto cached = [&](uint32_t chunk) {
      return chunks_[chunk].free() && WholePages(chunk).size > Bytes(0);
    };
    for (const uint32_t chunk : Select(cached)) UnmapPages(chunk);
  } else {
    for (const uint32_t chunk : Select([&](uint32_t c) { return IsIdle(c); })) {
      ReleaseSegment(chunk);
    }
  }
}

Block PyTorch::WholePages(uint32_t chunk) const {
  const Pool& pool = pools_[pool_of_[chunk]];
  const Bytes offset = chunks_[chunk].offset - *pool.base;
  const Bytes begin = RoundUp(offset, pool.page);
  const Bytes end = RoundDown(offset + chunks_[chunk].size, pool.page);
  return {*pool.base + begin, std::max(end - begin, Bytes(0))};
}

void PyTorch::UnmapPages(uint32_t chunk) {
  Pool& pool = PoolOf(chunk);
  const Block pages = WholePages(chunk);
  RemoveFree(chunk);
  if (const Bytes before = pages.offset - chunks_[chunk].offset; before > Bytes(0)) {
    AddFree(CutLow(chunk, before));
  }
  if (pages.size < chunks_[chunk].size) {
    const uint32_t low = CutLow(chunk, pages.size);
    AddFree(chunk);
    chunk = low;
  }
  Log(DriverCall::Kind::kUnmap, pages.offset, pages.size);
  reserved_ -= pages.size;
  chunks_[chunk].requested = ChunkList::kUnmapped;
  const auto is_hole = [&](uint32_t other) {
    return other != ChunkList::kNone && chunks_[other].requested == ChunkList::kUnmapped;
  };
  if (const uint32_t next = chunks_[chunk].next; is_hole(next)) {
    pool.unmapped.Erase(chunks_.AsFree(next));
    chunks_.JoinNext(chunk);
  }
  if (const uint32_t previous = chunks_[chunk].previous; is_hole(previous)) {
    pool.unmapped.Erase(chunks_.AsFree(previous));
    chunks_.JoinNext(previous);
    chunk = previous;
  }
  pool.unmapped.Insert(chunks_.AsFree(chunk));
}

// A request can use cached memory, or the driver's memory after all idle memory has been given
// back.
MemoryStats PyTorch::Stats() const {
  const Pool& small = pools_[PoolFor(true)];
  const Pool& large = pools_[PoolFor(false)];
  Bytes left = capacity_ - reserved_;
  for (uint32_t chunk = 0; chunk < chunks_.end(); ++chunk) {
    if (!chunks_[chunk].free()) continue;
    if (options_.expandable_segments) {
      left += WholePages(chunk).size;
    } else if (IsIdle(chunk)) {
      left += chunks_[chunk].size;
    }
  }
  Bytes largest = std::min(small.free.Largest(), kLargestSmall);
  if (left >= kSmallSegment) largest = kLargestSmall;
  if (large.free.Largest() > kLargestSmall) largest = large.free.Largest();
  if (options_.expandable_segments) {
    // New pages at the end can be joined with the free part of a page before them.
    const uint32_t before = large.unmapped.empty()
                                ? ChunkList::kNone
                                : chunks_.FreePrevious(large.unmapped.Last().chunk);
    Bytes there = RoundDown(left, large.page);
    if (before != ChunkList::kNone) there += chunks_[before].size - WholePages(before).size;
    if (there > kLargestSmall) largest = std::max(largest, there);
  } else if (left >= kOwnSegment) {
    largest = std::max(largest, RoundDown(left, kPage));
  }
  return {requested_, allocated_, reserved_, largest};
}

}  // namespace spillway::sim
