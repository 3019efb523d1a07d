#include "sim/alloc/first_fit.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway {

FirstFit::FirstFit(Bytes capacity, Bytes granularity) : granularity_(granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0));
  const Bytes usable = RoundDown(capacity, granularity);
  if (usable > Bytes(0)) free_.Insert(EntryOf(chunks_.AddSegment(Bytes(0), usable)));
}

std::optional<Block> FirstFit::Allocate(Bytes size, Hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  const auto fit = free_.Lowest(rounded);
  if (!fit) return std::nullopt;
  uint32_t chunk = fit->chunk;
  if (fit->size > rounded) {
    chunk = chunks_.CutLow(fit->chunk, rounded);
    free_.Replace(fit->offset, EntryOf(fit->chunk));
  } else {
    free_.Erase(fit->offset);
  }
  chunks_[chunk].requested = size.count();
  requested_ += size;
  allocated_ += rounded;
  reserved_ = std::max(reserved_, fit->offset + rounded);
  return Block{fit->offset, rounded, chunk};
}

void FirstFit::Free(const Block& block) {
  chunks_.CheckTaken(block);
  const uint32_t chunk = block.handle;
  requested_ -= Bytes(chunks_[chunk].requested);
  allocated_ -= block.size;
  chunks_[chunk].requested = ChunkList::kFree;
  const uint32_t next = chunks_.FreeNext(chunk);
  const uint32_t previous = chunks_.FreePrevious(chunk);
  const Bytes next_offset = block.end();
  if (next != ChunkList::kNone) chunks_.JoinNext(chunk);
  if (previous != ChunkList::kNone) {
    if (next != ChunkList::kNone) free_.Erase(next_offset);
    chunks_.JoinNext(previous);
    free_.Replace(chunks_[previous].offset, EntryOf(previous));
  } else if (next != ChunkList::kNone) {
    free_.Replace(next_offset, EntryOf(chunk));
  } else {
    free_.Insert(EntryOf(chunk));
  }
}

MemoryStats FirstFit::Stats() const { return {requested_, allocated_, reserved_, free_.Largest()}; }

}  // namespace spillway
