#include "sim/alloc/high_end.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway {

HighEnd::HighEnd(Bytes capacity, Bytes granularity, Reading reading)
    : granularity_(granularity), reading_(reading) {
  SPILLWAY_CHECK(granularity > Bytes(0));
  const Bytes usable = RoundDown(capacity, granularity);
  if (usable > Bytes(0)) AddFree(chunks_.AddSegment(Bytes(0), usable));
}

void HighEnd::AddFree(uint32_t chunk) {
  chunks_[chunk].requested = ChunkList::kFree;
  by_size_.Insert({chunks_[chunk].size, chunks_[chunk].offset, chunk});
  by_address_.Insert({chunks_[chunk].offset, chunks_[chunk].size, chunk});
}

void HighEnd::RemoveFree(uint32_t chunk) {
  by_size_.Erase({chunks_[chunk].size, chunks_[chunk].offset, chunk});
  by_address_.Erase(chunks_[chunk].offset);
}

uint32_t HighEnd::Choose(Bytes rounded, Hint hint) const {
  if (hint == Hint::kLow) {
    const auto fit = by_size_.BestFit(rounded);
    return fit ? fit->chunk : ChunkList::kNone;
  }
  const auto fit = by_address_.Highest(reading_ == Reading::kCode ? Bytes(0) : rounded);
  return fit && fit->size >= rounded ? fit->chunk : ChunkList::kNone;
}

std::optional<Block> HighEnd::Allocate(Bytes size, Hint hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  uint32_t chunk = Choose(rounded, hint);
  if (chunk == ChunkList::kNone) return std::nullopt;
  RemoveFree(chunk);
  if (const Bytes rest = chunks_[chunk].size - rounded; rest > Bytes(0)) {
    if (hint == Hint::kHigh) {
      AddFree(chunks_.CutLow(chunk, rest));
    } else {
      const uint32_t taken = chunks_.CutLow(chunk, rounded);
      AddFree(chunk);
      chunk = taken;
    }
  }
  const Bytes offset = chunks_[chunk].offset;
  chunks_[chunk].requested = size.count();
  requested_ += size;
  allocated_ += rounded;
  reserved_ = std::max(reserved_, offset + rounded);
  return Block{offset, rounded, chunk};
}

void HighEnd::Free(const Block& block) {
  chunks_.CheckTaken(block);
  const uint32_t chunk = block.handle;
  requested_ -= Bytes(chunks_[chunk].requested);
  allocated_ -= block.size;
  AddFree(chunks_.JoinFree(chunk, [this](uint32_t free) { RemoveFree(free); }));
}

Bytes HighEnd::LargestFree(Hint hint) const {
  if (hint == Hint::kLow || reading_ == Reading::kText) return by_size_.Largest();
  const auto last = by_address_.Highest(Bytes(0));
  return last ? last->size : Bytes(0);
}

MemoryStats HighEnd::Stats() const {
  return {requested_, allocated_, reserved_, by_size_.Largest()};
}

}  // namespace spillway
