// The chunks that tile an allocator's segments. A chunk is free or taken and knows its neighbours
// by address.
//
// The list has no placement rule: each allocator keeps the free chunks in an index of its choice. A
// chunk's number does not change while the chunk exists and serves as `Block::handle`.

#ifndef SPILLWAY_SIM_ALLOC_POOL_CHUNK_LIST_H_
#define SPILLWAY_SIM_ALLOC_POOL_CHUNK_LIST_H_

#include <cstdint>
#include <vector>

#include "sim/alloc/pool/free_block.h"
#include "sim/core/allocator.h"
#include "traces/base/error.h"

namespace spillway::sim {

class ChunkList {
 public:
  static constexpr uint32_t kNone = 0xffffffff;
  static constexpr int64_t kFree = -1;
  static constexpr int64_t kUnmapped = -2;  // addresses without memory behind them
  static constexpr int64_t kGone = -3;      // no chunk has this number now

  struct Chunk {
    Bytes offset;
    Bytes size;
    int64_t requested = kFree;  // bytes requested, or kFree, kUnmapped or kGone
    uint32_t previous = kNone;  // neighbours by address in the same segment
    uint32_t next = kNone;
    bool free() const { return requested == kFree; }
    bool taken() const { return requested >= 0; }
  };

  Chunk& operator[](uint32_t chunk) { return chunks_[chunk]; }
  const Chunk& operator[](uint32_t chunk) const { return chunks_[chunk]; }

  FreeBlock AsFree(uint32_t chunk) const {
    return {chunks_[chunk].offset, chunks_[chunk].size, chunk};
  }

  // Adds a segment that consists of one free chunk. Returns the chunk.
  uint32_t AddSegment(Bytes offset, Bytes size) {
    const uint32_t chunk = New();
    chunks_[chunk].offset = offset;
    chunks_[chunk].size = size;
    return chunk;
  }
  // REQUIRES: the chunk is a whole segment.
  void RemoveSegment(uint32_t chunk) { Recycle(chunk); }

  // Returns one more than the largest number that was ever used.
  uint32_t end() const { return static_cast<uint32_t>(chunks_.size()); }

  // Cuts `size` bytes off the low end. They become a new free chunk before `chunk`. Returns the new
  // chunk.
  uint32_t CutLow(uint32_t chunk, Bytes size) {
    const uint32_t low = New();
    Chunk& rest = chunks_[chunk];
    chunks_[low] = {rest.offset, size, kFree, rest.previous, chunk};
    if (rest.previous != kNone) chunks_[rest.previous].next = low;
    rest.previous = low;
    rest.offset += size;
    rest.size -= size;
    return low;
  }

  // Joins a chunk with its next neighbour. The neighbour's number is no longer valid.
  void JoinNext(uint32_t chunk) {
    const uint32_t gone = chunks_[chunk].next;
    chunks_[chunk].size += chunks_[gone].size;
    chunks_[chunk].next = chunks_[gone].next;
    if (chunks_[chunk].next != kNone) chunks_[chunks_[chunk].next].previous = chunk;
    Recycle(gone);
  }

  // Returns the neighbour if it exists and is free, else kNone.
  uint32_t FreeNext(uint32_t chunk) const { return IfFree(chunks_[chunk].next); }
  uint32_t FreePrevious(uint32_t chunk) const { return IfFree(chunks_[chunk].previous); }

  // Joins a chunk with its free neighbours. Calls `remove` with each neighbour before it is joined.
  // Returns the joined chunk.
  template <typename Remove>
  uint32_t JoinFree(uint32_t chunk, const Remove& remove) {
    if (const uint32_t next = FreeNext(chunk); next != kNone) {
      remove(next);
      JoinNext(chunk);
    }
    const uint32_t previous = FreePrevious(chunk);
    if (previous == kNone) return chunk;
    remove(previous);
    JoinNext(previous);
    return previous;
  }

  // Aborts if the block is not a taken chunk.
  void CheckTaken(const Block& block) const {
    SPILLWAY_CHECK(block.handle < chunks_.size());
    const Chunk& chunk = chunks_[block.handle];
    SPILLWAY_CHECK(chunk.offset == block.offset && chunk.size == block.size && chunk.taken());
  }

 private:
  void Recycle(uint32_t chunk) {
    chunks_[chunk].requested = kGone;
    unused_.push_back(chunk);
  }

  uint32_t IfFree(uint32_t chunk) const {
    return chunk != kNone && chunks_[chunk].free() ? chunk : kNone;
  }

  uint32_t New() {
    if (unused_.empty()) {
      chunks_.emplace_back();
      return static_cast<uint32_t>(chunks_.size() - 1);
    }
    const uint32_t chunk = unused_.back();
    unused_.pop_back();
    chunks_[chunk] = Chunk();
    return chunk;
  }

  std::vector<Chunk> chunks_;
  std::vector<uint32_t> unused_;  // numbers that are free for new chunks
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_POOL_CHUNK_LIST_H_
