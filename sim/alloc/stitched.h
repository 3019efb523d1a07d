// Virtual memory stitching: pages that lie apart are mapped side by side, so that no request fails
// while enough pages are free.
//
// vDNN++ asked for such an allocator (section III-B), and CUDA's virtual memory management can
// implement it. Memory is taken in pages, 2 MiB by default. Page i is mapped at address i * page
// when it is first used. A request of more than half a page takes whole pages: the smallest run of
// free pages below the high-water mark that is long enough, else the lowest free pages. Smaller
// requests share pages by best fit.
//
// Pages that lie apart are mapped a second time, at new adjacent addresses. These addresses belong
// to that list of pages for good: the same list gets the same addresses again without a driver
// call. So no page is ever unmapped, the allocator never synchronizes, and a steady iteration maps
// nothing. On the other hand, two addresses may mean the same memory, so hazards must follow the
// memory.
//
// `reserved` is the high-water mark in pages. It never exceeds the largest sum of live blocks plus
// a page for each block.

#ifndef SPILLWAY_SIM_ALLOC_STITCHED_H_
#define SPILLWAY_SIM_ALLOC_STITCHED_H_

#include <map>
#include <vector>

#include "sim/alloc/pool/size_bins.h"
#include "sim/alloc/shared_pages.h"
#include "sim/core/replayable_allocator.h"
#include "traces/base/chunked_set.h"

namespace spillway::sim {

class Stitched final : public ReplayableAllocator {
 public:
  // REQUIRES: granularity > 0, and the page is a multiple of the granularity.
  Stitched(Bytes capacity, Bytes granularity, Bytes page = Bytes::MiB(2));

  std::string_view Name() const override { return "stitched"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return page_ * created_; }
  std::span<const DriverCall> driver_calls() const override { return calls_; }
  Backing backing() const override { return Backing::kPages; }

 private:
  // Pages [begin, end).
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    auto operator<=>(const Run&) const = default;
    int64_t length() const { return end - begin; }
  };
  using Pages = std::vector<Run>;  // ascending; no run touches the next
  struct Live {
    Pages pages;  // whole pages; empty for a block in a shared page
    Bytes requested;
    bool taken = false;
    int64_t shared = -1;  // number of the shared page, or -1
    Block inner;          // the block within the shared page
  };
  // Takes `count` free pages. Returns nullopt if there are fewer.
  std::optional<Pages> TakePages(int64_t count);
  void GivePages(const Pages& pages);
  // Adds a run of free pages, joined with free neighbours.
  void AddFree(Run run);
  FreeBlock AsFree(const Run& run) const { return {page_ * run.begin, page_ * run.length()}; }
  // Returns the address at which the pages are adjacent. Maps them there if needed.
  Bytes AddressOf(const Pages& pages);
  void Create(int64_t end);
  std::optional<SharedPages::Page> TakeSharedPage();
  uint32_t NewLive();

  const Bytes page_;
  const int64_t pages_;              // pages of the device
  const int64_t window_;             // the lowest `window_` pages have an address each
  int64_t created_ = 0;              // the lowest `created_` pages have been used so far
  int64_t used_ = 0;                 // pages in use now
  ChunkedSet<Run> free_;             // free pages among the created ones
  SizeBins by_length_;               // the runs of `free_`
  std::map<Pages, Bytes> stitched_;  // address of each list of pages
  Bytes next_address_;
  SharedPages shared_;
  std::vector<Live> live_;  // by handle
  std::vector<uint32_t> unused_;
  std::vector<DriverCall> calls_;
  Bytes requested_, allocated_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_STITCHED_H_
