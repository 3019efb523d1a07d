// One arena cut into chunks: the common part of allocators that differ only in which free block
// they take.
//
// Requests are rounded up to a granularity. Freed blocks merge with free neighbours at once. A
// block is cut from the low or the high end of the free block, as the hint says. `reserved` is the
// high-water mark: the end of the highest block ever handed out. The arena is a list of chunks in
// address order. Blocks carry the chunk numbers as their handles, and free chunks are also in an
// index.
//
// An `Index` is the placement rule. It has the functions `Insert(FreeBlock)`, `Erase(FreeBlock)`,
// `Largest()`, `Replace(block, by)` and `Take(size, hint, cut)`. `Replace` requires that no free
// block lies between the two. `Take` chooses the free block for a request and replaces it by the
// rest that `cut` returns; it returns false if no block is large enough.

#ifndef SPILLWAY_SIM_ALLOC_POOL_CHUNK_ARENA_H_
#define SPILLWAY_SIM_ALLOC_POOL_CHUNK_ARENA_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "sim/alloc/pool/chunk_list.h"
#include "sim/core/replayable_allocator.h"
#include "traces/base/error.h"

namespace spillway::sim {

template <typename Index>
class ChunkArena : public ReplayableAllocator {
 public:
  // REQUIRES: granularity > 0. The arena holds `capacity` rounded down to the granularity.
  ChunkArena(Bytes capacity, Bytes granularity, Index index = Index())
      : granularity_(granularity), free_(std::move(index)) {
    SPILLWAY_CHECK(granularity > Bytes(0));
    const Bytes usable = RoundDown(capacity, granularity);
    if (usable > Bytes(0)) AddFree(chunks_.AddSegment(Bytes(0), usable));
  }

  std::optional<Block> Allocate(Bytes size, Hint hint) override {
    const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
    uint32_t chunk = ChunkList::kNone;
    const auto cut = [&](const FreeBlock& block) -> std::optional<FreeBlock> {
      chunk = block.chunk;
      const Bytes rest = block.size - rounded;
      if (rest == Bytes(0)) return std::nullopt;
      const uint32_t low = chunks_.CutLow(chunk, hint == Hint::kHigh ? rest : rounded);
      const uint32_t left = hint == Hint::kHigh ? low : chunk;
      if (hint == Hint::kLow) chunk = low;
      return chunks_.AsFree(left);
    };
    if (!free_.Take(rounded, hint, cut)) chunk = Grow(rounded);
    if (chunk == ChunkList::kNone) return std::nullopt;
    const Bytes offset = chunks_[chunk].offset;
    chunks_[chunk].requested = size.count();
    requested_ += size;
    allocated_ += rounded;
    reserved_ = std::max(reserved_, offset + rounded);
    return Block{offset, rounded, chunk};
  }

  void Free(const Block& block) override {
    chunks_.CheckTaken(block);
    requested_ -= Bytes(chunks_[block.handle].requested);
    allocated_ -= block.size;
    std::optional<FreeBlock> beside;
    const uint32_t joined = chunks_.JoinFree(block.handle, [&](uint32_t free) {
      if (beside) free_.Erase(*beside);
      beside = chunks_.AsFree(free);
    });
    if (!beside) return AddFree(joined);
    chunks_[joined].requested = ChunkList::kFree;
    free_.Replace(*beside, chunks_.AsFree(joined));
  }

  MemoryStats Stats() const override {
    return {requested_, allocated_, reserved_, free_.Largest()};
  }
  Bytes Reserved() const override { return reserved_; }

 protected:
  // Returns a new chunk of this size that is in no index, if the arena can grow; else kNone.
  virtual uint32_t Grow(Bytes /*rounded*/) { return ChunkList::kNone; }

  const Bytes granularity_;
  ChunkList chunks_;
  Index free_;
  Bytes requested_, allocated_, reserved_;

 private:
  void AddFree(uint32_t chunk) {
    chunks_[chunk].requested = ChunkList::kFree;
    free_.Insert(chunks_.AsFree(chunk));
  }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_POOL_CHUNK_ARENA_H_
