// Virtual memory stitching: pages that lie apart are mapped side by side, so that no request fails
// while enough pages are free.
//
// It is what vDNN++ wished for (section III-B) and what CUDA's virtual memory management offers.
// Memory is taken in pages, 2 MiB by default. Page i is mapped at address i * page when it is first
// used. A request of more than half a page takes whole pages: the smallest run of free pages below
// the high-water mark that is long enough, else the lowest free pages wherever they are. Pages that
// lie apart are mapped once more, at addresses of their own, which belong to that list of pages for
// good: the same pages get the same addresses again, without a call. So nothing is ever unmapped
// and nothing synchronises, and a steady iteration maps nothing; but two addresses may mean the
// same memory, and hazards must follow the memory. Smaller requests share pages by best fit.
// `reserved` is the high-water mark in pages: never more than the largest sum of live blocks plus a
// page for each.

#ifndef SPILLWAY_SIM_ALLOC_STITCHED_H_
#define SPILLWAY_SIM_ALLOC_STITCHED_H_

#include <map>
#include <vector>

#include "sim/alloc/pool/size_bins.h"
#include "sim/alloc/shared_pages.h"
#include "sim/core/replayable_allocator.h"
#include "traces/base/chunked_set.h"

namespace spillway {

class Stitched final : public ReplayableAllocator {
 public:
  // REQUIRES: granularity > 0 divides the page.
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
  using Pages = std::vector<Run>;  // in ascending order, none touches the next
  struct Live {
    Pages pages;  // of its own; empty for a block in a shared page
    Bytes requested;
    bool taken = false;
    int64_t shared = -1;  // the shared page
    Block inner;          // in it
  };
  // nullopt if there are not that many free pages, or no addresses left.
  std::optional<Pages> TakePages(int64_t count);
  void GivePages(const Pages& pages);
  // Joins the run with those beside it.
  void AddFree(Run run);
  FreeBlock AsFree(const Run& run) const { return {page_ * run.begin, page_ * run.length()}; }
  // Where the pages can be used in one piece.
  Bytes AddressOf(const Pages& pages);
  void Create(int64_t end);
  std::optional<SharedPages::Page> TakeSharedPage();
  uint32_t NewLive();

  const Bytes page_;
  const int64_t pages_;              // of the device
  const int64_t window_;             // pages that have an address of their own: lower ones
  int64_t created_ = 0;              // pages used so far: the lowest
  int64_t used_ = 0;                 // pages in use now
  ChunkedSet<Run> free_;             // created pages
  SizeBins by_length_;               // the same
  std::map<Pages, Bytes> stitched_;  // addresses of lists of pages
  Bytes next_address_;
  SharedPages shared_;
  std::vector<Live> live_;  // by handle
  std::vector<uint32_t> unused_;
  std::vector<DriverCall> calls_;
  Bytes requested_, allocated_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_STITCHED_H_
