#include "sim/alloc/best_fit.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway {

BestFit::BestFit(Bytes capacity, Bytes granularity) : granularity_(granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0));
  const Bytes usable = RoundDown(capacity, granularity);
  if (usable > Bytes(0)) AddFree(chunks_.AddSegment(Bytes(0), usable));
}

void BestFit::AddFree(uint32_t chunk) {
  chunks_[chunk].requested = ChunkList::kFree;
  free_.Insert({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

void BestFit::RemoveFree(uint32_t chunk) {
  free_.Erase({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

std::optional<Block> BestFit::Allocate(Bytes size, Hint hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  const auto fit = free_.TakeBestFit(rounded);
  if (!fit) return std::nullopt;
  uint32_t chunk = fit->chunk;
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

void BestFit::Free(const Block& block) {
  chunks_.CheckTaken(block);
  const uint32_t chunk = block.handle;
  requested_ -= Bytes(chunks_[chunk].requested);
  allocated_ -= block.size;
  AddFree(chunks_.JoinFree(chunk, [this](uint32_t free) { RemoveFree(free); }));
}

MemoryStats BestFit::Stats() const { return {requested_, allocated_, reserved_, free_.Largest()}; }

}  // namespace spillway
