// PyTorch's caching allocator: it takes segments from the driver, splits them into blocks, and
// keeps them until memory runs out.
//
// The rules follow its documentation ("CUDA semantics: memory management") and its source as of
// 2.4. Requests are rounded up to 512 bytes. A request of at most 1 MiB is served from small
// segments of 2 MiB; a request below 10 MiB from large segments of `large_segment_size` (20 MiB);
// any other request gets a segment of its size, rounded up to 2 MiB. Within its pool, a request
// takes the smallest free block that is large enough, of equal sizes the lowest. The rest is split
// off if the block is small and at least 512 bytes remain, or if the block is large, more than 1
// MiB remains and the request is below `max_split_size`. Blocks of `max_split_size` and more never
// serve smaller requests, nor requests that they exceed by `max_non_split_rounding` (20 MiB) or
// more. Freed blocks merge with free neighbours of their segment. If the driver has no memory left,
// cached segments without live blocks are given back and the request is tried again: first with as
// few oversized segments of the pool as are needed, then with all segments.
//
// With `garbage_collection_threshold`, a request of the large pools that finds no cached block
// first gives old cached segments back, if more than that share of the capacity is reserved. The
// capacity stands for the limit of `torch.cuda.set_per_process_memory_fraction`, without which
// PyTorch collects nothing. The age of a cached block is the number of requests of large pools
// since it became free. Each pass gives back the segments without live blocks that are at least as
// old as the mean age of the remaining segments. Passes are repeated until reserved memory is down
// at the threshold or no segment is left; a pass is always completed.
//
// With `expandable_segments`, each pool is one range of addresses, into which memory is mapped 2
// MiB (small) or `large_segment_size`, rounded up to 2 MiB (large), at a time. Every remainder of
// at least 512 bytes is split off. Only whole pages of free blocks are given back, and there is no
// garbage collection. A free block in front of addresses without memory can grow. While the next
// larger block could grow to less than the current choice could, the next larger block is chosen
// instead.
//
// With `roundup_power2_divisions`, the interval between two powers of two is divided into that many
// equal steps, and requests above that many granules are rounded up to the next step. The number of
// steps may depend on the size.
//
// If two free blocks have one size, their addresses decide which serves a request, and so the
// addresses that the driver gave their segments. A replay takes the addresses from its recording
// (`ExpectSegment`); without a recording, addresses ascend in the order of the requests.
//
// Each stream has its own pools: memory freed on one stream does not serve another.
//
// `allocated` counts whole blocks, including remainders that were not split off.

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

namespace spillway::sim {

class PyTorch final : public ReplayableAllocator {
 public:
  struct Options {
    Bytes max_split_size = Bytes::Unlimited();
    bool expandable_segments = false;
    // Powers of two; 0 or 1 means no divisions. Entry i is for requests from 2^i MiB up to twice
    // that size; the first entry is also for smaller requests, the last also for larger ones.
    std::array<int64_t, 16> roundup_power2_divisions{};
    Bytes max_non_split_rounding = Bytes::MiB(20);
    Bytes large_segment_size = Bytes::MiB(20);  // more than 10 MiB
    double garbage_collection_threshold = 0;    // below 1; 0 means never
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
  // Adopts a segment. In a segment of the other kind (expandable or not), the blocks are allocated
  // one by one instead. REQUIRES: the blocks, rounded up to 512 bytes, lie in the segment and do
  // not overlap.
  std::optional<std::vector<Block>> Adopt(const HeldSegment& segment) override;
  // A request of `largest_free` bytes would succeed, but a smaller request may fail: a request
  // below 10 MiB takes a large segment, and divisions round up. With expandable segments,
  // `largest_free` is a lower bound, because holes in the middle may allow more.
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }
  std::span<const DriverCall> driver_calls() const override { return calls_; }
  Backing backing() const override {
    return options_.expandable_segments ? Backing::kPages : Backing::kSegments;
  }

 private:
  struct Pool {
    SizeBins free;
    Bytes page;  // size of a page, the unit of mapping
    // Only with expandable segments:
    std::optional<Bytes> base;  // start of the range of addresses, if there is one yet
    AddressOrder unmapped;
  };

  // Each stream has two pools: the small one has an even index, the large one the odd index after
  // it.
  static bool IsSmall(uint32_t pool) { return pool % 2 == 0; }
  uint32_t PoolFor(bool small) const { return first_pool_ + (small ? 0 : 1); }
  void AddPools();
  // Returns the size of the segment that a request takes.
  Bytes SegmentFor(Bytes size) const;
  Pool& PoolOf(uint32_t chunk) { return pools_[pool_of_[chunk]]; }
  // Returns true if the chunk is a segment without live blocks.
  bool IsIdle(uint32_t chunk) const {
    return chunks_[chunk].free() && chunks_[chunk].previous == ChunkList::kNone &&
           chunks_[chunk].next == ChunkList::kNone;
  }
  // Returns the chunks for which `wanted` returns true, by offset. Slow, so only used when memory
  // has run out and in replays.
  template <typename Predicate>
  std::vector<uint32_t> Select(Predicate wanted) const;
  void SetPool(uint32_t chunk, uint32_t pool);
  // Cuts off a low part, which belongs to the same pool.
  uint32_t CutLow(uint32_t chunk, Bytes size);
  void AddFree(uint32_t chunk);
  void RemoveFree(uint32_t chunk);
  // Joins a free chunk that is in no index with its free neighbours, and puts it into the index.
  void AddMerged(uint32_t chunk);

  // The sources of memory, in the order in which they are tried. Each returns a free chunk that is
  // in no index, or kNone.
  uint32_t TakeCached(Bytes size, uint32_t pool);
  uint32_t TakeNew(Bytes size, uint32_t pool);
  uint32_t TakeSegment(Bytes size, uint32_t pool);
  // Adds a new segment of this size: at `address` if that is free, else at a made-up address.
  uint32_t AddSegment(Bytes size, uint32_t pool, std::optional<Bytes> address);
  // Returns the address at which a segment of this size is expected.
  std::optional<Bytes> TakeExpected(Bytes size);
  uint32_t TakeExpanded(Bytes size, uint32_t pool);
  void AddRange(uint32_t pool, std::optional<Bytes> base);
  // Maps memory at this address, which must be above all mapped memory. Returns kNone if that is
  // impossible.
  uint32_t MapAt(Bytes address, Bytes size, uint32_t pool);

  // Returns how much must be mapped to use the low `size` bytes of an unmapped chunk.
  Bytes ToMap(uint32_t chunk, Bytes size) const;
  // Maps the low `size` bytes, in whole pages, and joins them with a free chunk before them.
  // Returns the free chunk.
  uint32_t Map(uint32_t chunk, Bytes size);
  // Give cached memory back. `CollectGarbage` gives back old segments if too much is reserved.
  // `ReleaseOversized` gives back oversized segments and returns false if they are too few.
  // `ReleaseAll` gives back all memory without live blocks.
  void CollectGarbage();
  bool ReleaseOversized(Bytes size, uint32_t pool);
  void ReleaseAll();
  void ReleaseSegment(uint32_t chunk);
  // Returns the whole pages in a free chunk of an expandable segment.
  Block WholePages(uint32_t chunk) const;
  void UnmapPages(uint32_t chunk);
  Bytes Rounded(Bytes size) const;  // returns the size with which a request is served
  bool ShouldSplit(Bytes block, Bytes size, bool small) const;
  // Takes `requested` bytes from the low end of a free chunk that is in no index.
  Block Take(uint32_t chunk, Bytes requested);
  void Log(DriverCall::Kind kind, Bytes offset, Bytes size) {
    calls_.push_back({kind, {offset, size}, std::nullopt});
  }

  const Bytes capacity_;
  const Options options_;
  ChunkList chunks_;
  std::vector<uint32_t> pool_of_;    // by chunk
  std::vector<int64_t> free_since_;  // by chunk: the value of `searches_` when it became free
  int64_t searches_ = 0;             // number of requests of large pools, on all streams
  std::vector<Pool> pools_;
  std::map<uint64_t, uint32_t> first_pools_;  // by stream: the index of its small pool
  uint32_t first_pool_ = 0;                   // the index of the current stream's small pool
  BestFit addresses_;                         // made-up addresses of segments
  struct Segment {
    Bytes size;
    std::optional<Block> made_up;  // the range in `addresses_`
  };
  std::map<Bytes, Segment> segments_;  // by offset
  std::vector<Block> expected_;        // addresses of segments to come
  bool recorded_ = false;              // some address came from a recording
  std::vector<DriverCall> calls_;
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_PYTORCH_H_
