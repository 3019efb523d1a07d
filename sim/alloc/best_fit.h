// Best fit over one arena: the smallest free block that suffices, ties to the lowest offset.
//
// Requests are rounded up to a granularity; freed blocks merge with free neighbours at once. The
// block is cut from the low or the high end of the chosen free block, as the hint says. `reserved`
// is the high-water mark: the end of the highest block ever handed out. The arena is a list of
// chunks in address order, whose numbers blocks carry as their handles; the free ones are also in
// bins by size. Every operation takes a few look-ups in contiguous memory.

#ifndef SPILLWAY_SIM_ALLOC_BEST_FIT_H_
#define SPILLWAY_SIM_ALLOC_BEST_FIT_H_

#include <cstdint>
#include <vector>

#include "sim/alloc/size_bins.h"
#include "sim/core/allocator.h"

namespace spillway {

class BestFit final : public Allocator {
 public:
  // REQUIRES: granularity > 0. The arena holds `capacity` rounded down to the granularity.
  BestFit(Bytes capacity, Bytes granularity);

  std::string_view Name() const override { return "best-fit"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  static constexpr int64_t kFree = -1;

  // A piece of the arena; together the chunks tile it.
  struct Chunk {
    Bytes offset;
    Bytes size;
    int64_t requested = kFree;  // bytes asked for, or kFree
    uint32_t previous = kNone;  // neighbours by address
    uint32_t next = kNone;
  };
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);
  // Cuts `size` bytes off the low end of a chunk, as a new chunk before it. Returns the new chunk.
  uint32_t CutLow(uint32_t chunk, Bytes size);
  // Joins a chunk with its next neighbour, whose record is recycled.
  void JoinNext(uint32_t chunk);
  uint32_t NewChunk();

  const Bytes granularity_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> unused_;  // recycled indices into chunks_
  SizeBins free_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_BEST_FIT_H_
