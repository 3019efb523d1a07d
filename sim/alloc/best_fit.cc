#include "sim/alloc/best_fit.h"

#include <algorithm>
#include <iterator>

#include "sim/core/error.h"

namespace spillway {

BestFit::BestFit(Bytes capacity, Bytes granularity) : granularity_(granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0));
  const Bytes usable(capacity.count() / granularity.count() * granularity.count());
  if (usable > Bytes(0)) AddFree(Bytes(0), usable);
}

void BestFit::AddFree(Bytes offset, Bytes size) {
  free_.emplace(offset, size);
  free_by_size_.emplace(size, offset);
}

void BestFit::RemoveFree(std::map<Bytes, Bytes>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_.erase(block);
}

std::optional<Block> BestFit::Allocate(Bytes size, Hint hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  const auto fit = free_by_size_.lower_bound({rounded, Bytes(0)});
  if (fit == free_by_size_.end()) return std::nullopt;
  const auto [free_size, free_offset] = *fit;
  RemoveFree(free_.find(free_offset));
  const Bytes rest = free_size - rounded;
  Bytes offset = free_offset;
  if (hint == Hint::kHigh) offset += rest;
  if (rest > Bytes(0)) AddFree(hint == Hint::kHigh ? free_offset : offset + rounded, rest);

  live_.emplace(offset.count(), size);
  requested_ += size;
  allocated_ += rounded;
  reserved_ = std::max(reserved_, offset + rounded);
  return Block{offset, rounded};
}

void BestFit::Free(const Block& block) {
  const auto live = live_.find(block.offset.count());
  SPILLWAY_CHECK(live != live_.end());
  requested_ -= live->second;
  allocated_ -= block.size;
  live_.erase(live);

  Bytes begin = block.offset;
  Bytes end = block.end();
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    RemoveFree(std::exchange(next, std::next(next)));
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      RemoveFree(previous);
    }
  }
  AddFree(begin, end - begin);
}

MemoryStats BestFit::Stats() const {
  const Bytes largest = free_by_size_.empty() ? Bytes(0) : free_by_size_.rbegin()->first;
  return {requested_, allocated_, reserved_, largest};
}

}  // namespace spillway
