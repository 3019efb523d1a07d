#include "sim/alloc/best_fit.h"

#include <algorithm>

#include "sim/core/error.h"

namespace spillway {

BestFit::BestFit(Bytes capacity, Bytes granularity) : granularity_(granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0));
  const Bytes usable(capacity.count() / granularity.count() * granularity.count());
  if (usable <= Bytes(0)) return;
  const uint32_t whole = NewChunk();
  chunks_[whole].size = usable;
  AddFree(whole);
}

uint32_t BestFit::NewChunk() {
  if (unused_.empty()) {
    chunks_.emplace_back();
    return static_cast<uint32_t>(chunks_.size() - 1);
  }
  const uint32_t chunk = unused_.back();
  unused_.pop_back();
  chunks_[chunk] = Chunk();
  return chunk;
}

void BestFit::AddFree(uint32_t chunk) {
  chunks_[chunk].requested = kFree;
  free_.Insert({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

void BestFit::RemoveFree(uint32_t chunk) {
  free_.Erase({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

uint32_t BestFit::CutLow(uint32_t chunk, Bytes size) {
  const uint32_t low = NewChunk();
  Chunk& rest = chunks_[chunk];
  chunks_[low] = {rest.offset, size, kFree, rest.previous, chunk};
  if (rest.previous != kNone) chunks_[rest.previous].next = low;
  rest.previous = low;
  rest.offset += size;
  rest.size -= size;
  return low;
}

void BestFit::JoinNext(uint32_t chunk) {
  const uint32_t gone = chunks_[chunk].next;
  chunks_[chunk].size += chunks_[gone].size;
  chunks_[chunk].next = chunks_[gone].next;
  if (chunks_[chunk].next != kNone) chunks_[chunks_[chunk].next].previous = chunk;
  unused_.push_back(gone);
}

std::optional<Block> BestFit::Allocate(Bytes size, Hint hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  const auto fit = free_.TakeBestFit(rounded);
  if (!fit) return std::nullopt;
  uint32_t chunk = fit->chunk;
  if (const Bytes rest = chunks_[chunk].size - rounded; rest > Bytes(0)) {
    if (hint == Hint::kHigh) {
      AddFree(CutLow(chunk, rest));
    } else {
      const uint32_t taken = CutLow(chunk, rounded);
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

void BestFit::Free(const Block& block) {
  uint32_t chunk = block.handle;
  SPILLWAY_CHECK(chunk < chunks_.size() && chunks_[chunk].offset == block.offset &&
                 chunks_[chunk].size == block.size && chunks_[chunk].requested != kFree);
  requested_ -= Bytes(chunks_[chunk].requested);
  allocated_ -= block.size;
  const uint32_t next = chunks_[chunk].next;
  if (next != kNone && chunks_[next].requested == kFree) {
    RemoveFree(next);
    JoinNext(chunk);
  }
  const uint32_t previous = chunks_[chunk].previous;
  if (previous != kNone && chunks_[previous].requested == kFree) {
    RemoveFree(previous);
    JoinNext(previous);
    chunk = previous;
  }
  AddFree(chunk);
}

MemoryStats BestFit::Stats() const { return {requested_, allocated_, reserved_, free_.Largest()}; }

}  // namespace spillway
