// PyTorch's caching allocator: segments from the driver, split into blocks, kept until memory runs
// out.
//
// The rules, in the terms of its documentation ("CUDA semantics: memory management") and of its
// source as of 2.4. Requests are rounded up to 512 bytes. Those of at most 1 MiB are served from
// small segments of 2 MiB; those below 10 MiB from large segments of 20 MiB; all others get a
// segment of their size, rounded up to 2 MiB. Within its pool a request takes the smallest free
// block that suffices, the lowest of equals. The rest is split off where the block is small and at
// least 512 bytes remain, or where it is large, more than 1 MiB remains and the request is below
// `max_split_size`. Blocks of that size and more never serve smaller requests, nor requests that
// they exceed by `max_non_split_rounding` (20 MiB). Freed blocks merge with free neighbours of
// their segment. If the driver has no memory left, cached segments without live blocks are given
// back, first as few oversized ones of the pool as are needed, then all, and the request is tried
// again.
//
// With `garbage_collection_threshold` a request of the large pools that finds nothing cached first
// gives back what has been cached for long, if more than that part of the capacity is reserved. The
// capacity stands for what `torch.cuda.set_per_process_memory_fraction` allows, without which
// PyTorch collects nothing. The age of a cached block is the number of requests of large pools
// since it became free. Passes give back the segments without live blocks that are at least as old
// as the mean of those left, until reserved memory is down at the threshold or none is left; a pass
// is not cut short.
//
// With `expandable_segments` each pool is one range of addresses, into which memory is mapped 2 MiB
// (small) or 20 MiB (large) at a time; every remainder of 512 bytes is split off, and what is given
// back are the whole pages of free blocks. Nothing is collected. A free block in front of addresses
// without memory can grow: while the next larger block could grow to less than the one at hand, it
// is taken instead.
//
// With `roundup_power2_divisions` requests above that many granules are rounded up to the next of
// so many equal steps between two powers of two. How many may differ by size.
//
// Which of two free blocks of one size serves a request depends on their addresses, and so on where
// the driver put their segments. A replay takes that from its recording (`ExpectSegment`); without
// one, addresses ascend in the order of the requests.
//
// Each stream has pools of its own: what is freed on one is not seen by another.
//
// `allocated` counts whole blocks, remainders that were not split off included.

#ifndef SPILLWAY_SIM_ALLOC_PYTORCH_H_
#define SPILLWAY_SIM_ALLOC_PYTORCH_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/alloc/best_fit.h"
#include "sim/alloc/pool/chunk_list.h"
#include "sim/alloc/pool/free_block.h"
#include "sim/alloc/pool/size_bins.h"
#include "sim/core/replayable_allocator.h"

namespace spillway {

class PyTorch final : public ReplayableAllocator {
 public:
  struct Options {
    Bytes max_split_size = Bytes::Unlimited();
    bool expandable_segments = false;
    // Powers of two; 0 or 1: none. Entry i is for requests from 2^i MiB up to twice that, the first
    // also for smaller ones, the last also for larger ones.
    std::array<int64_t, 16> roundup_power2_divisions{};
    Bytes max_non_split_rounding = Bytes::MiB(20);
    double garbage_collection_threshold = 0;  // below 1; 0: never
  };

  PyTorch(Bytes capacity, const Options& options);

  std::string_view Name() const override { return "pytorch"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  void UseStream(uint64_t stream) override;
  void EmptyCache() override { ReleaseAll(); }
  void ExpectSegment(const Block& range) override {
    if (!options_.expandable_segments) expected_.push_back(range);
  }
  bool GiveBack(const Block& range) override;
  // REQUIRES: the blocks, rounded up to 512 bytes, lie in the segment and do not overlap. Blocks of
  // the other kind of segments, expandable or not, are allocated one by one.
  std::optional<std::vector<Block>> Adopt(const HeldSegment& segment) override;
  // `largest_free` may be had though a smaller request may not: one below 10 MiB takes a segment
  // of 20 MiB, and divisions round up. With expandable segments it is a lower bound: holes in the
  // middle may add to it.
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }
  std::span<const DriverCall> driver_calls() const override { return calls_; }
  Backing backing() const override {
    return options_.expandable_segments ? Backing::kPages : Backing::kSegments;
  }

 private:
  struct Pool {
    SizeBins free;
    Bytes page;  // what is mapped at a time
    // With expandable segments:
    std::optional<Bytes> base;  // where the range of addresses begins, once there is one
    AddressOrder unmapped;
  };

  // Pools come in pairs, one for each stream: small at even indices, large at odd ones.
  static bool IsSmall(uint32_t pool) { return pool % 2 == 0; }
  uint32_t PoolFor(bool small) const { return first_pool_ + (small ? 0 : 1); }
  void AddPools();
  Pool& PoolOf(uint32_t chunk) { return pools_[pool_of_[chunk]]; }
  // A segment without live blocks.
  bool IsIdle(uint32_t chunk) const {
    return chunks_[chunk].free() && chunks_[chunk].previous == ChunkList::kNone &&
           chunks_[chunk].next == ChunkList::kNone;
  }
  // The chunks for which `wanted` says yes, by offset. Slow: for when memory has run out.
  template <typename Predicate>
  std::vector<uint32_t> Select(Predicate wanted) const;
  void SetPool(uint32_t chunk, uint32_t pool);
  // Cuts off a low part, of the same pool.
  uint32_t CutLow(uint32_t chunk, Bytes size);
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);
  // Joins a free chunk that is in no index with its free neighbours, and puts it in.
  void AddMerged(uint32_t chunk);

  // The sources of memory, in the order in which they are tried; kNone if they have none. The chunk
  // returned is free and in no index.
  uint32_t TakeCached(Bytes size, uint32_t pool);
  uint32_t TakeNew(Bytes size, uint32_t pool);
  uint32_t TakeSegment(Bytes size, uint32_t pool);
  // A new segment of this size, at the address if that is free, else at one that is made up.
  uint32_t AddSegment(Bytes size, uint32_t pool, std::optional<Bytes> address);
  // Where a segment of this size is expected.
  std::optional<Bytes> TakeExpected(Bytes size);
  uint32_t TakeExpanded(Bytes size, uint32_t pool);
  void AddRange(uint32_t pool, std::optional<Bytes> base);
  // Maps memory at this address, above all that is mapped. kNone if there is none.
  uint32_t MapAt(Bytes address, Bytes size, uint32_t pool);

  // How much is mapped to have the low `size` bytes of an unmapped chunk.
  Bytes ToMap(uint32_t chunk, Bytes size) const;
  // Maps it and joins it with a free chunk before. Returns the free chunk.
  uint32_t Map(uint32_t chunk, Bytes size);
  // Give cached memory back: what is old, if too much is reserved; oversized blocks, false if they
  // are too few; or all that is idle.
  void CollectGarbage();
  bool ReleaseOversized(Bytes size, uint32_t pool);
  void ReleaseAll();
  void ReleaseSegment(uint32_t chunk);
  // The whole pages in a free chunk of an expandable segment.
  Block WholePages(uint32_t chunk) const;
  void UnmapPages(uint32_t chunk);
  Bytes Rounded(Bytes size) const;  // to what a request is served with
  bool ShouldSplit(Bytes block, Bytes size, bool small) const;
  // Takes `requested` bytes of a free chunk that is in no index, from its low end.
  Block Take(uint32_t chunk, Bytes requested);
  void Log(DriverCall::Kind kind, Bytes offset, Bytes size) {
    calls_.push_back({kind, {offset, size}, std::nullopt});
  }

  const Bytes capacity_;
  const Options options_;
  ChunkList chunks_;
  std::vector<uint32_t> pool_of_;    // by chunk
  std::vector<int64_t> free_since_;  // by chunk: `searches_` then
  int64_t searches_ = 0;             // requests of large pools, whatever their stream
  std::vector<Pool> pools_;
  std::map<uint64_t, uint32_t> first_pools_;  // by stream
  uint32_t first_pool_ = 0;                   // of the stream in use
  BestFit addresses_;                         // of segments, those that are made up
  struct Segment {
    Bytes size;
    std::optional<Block> made_up;  // what `addresses_` gave
  };
  std::map<Bytes, Segment> segments_;  // by offset
  std::vector<Block> expected_;        // addresses of segments to come
  bool recorded_ = false;              // some address is
  std::vector<DriverCall> calls_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_PYTORCH_H_
