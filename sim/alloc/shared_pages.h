// Pages of memory that small blocks share. A block goes into the first page with room, by page
// number, else into a new page; within a page it is placed by best fit. A page is given back with
// its last block.

#ifndef SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_
#define SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "sim/alloc/best_fit.h"
#include "traces/base/chunked_set.h"

namespace spillway::sim {

class SharedPages {
 public:
  struct Page {
    int64_t number = 0;
    Block range;
  };
  struct Placed {
    Block block;
    int64_t page = 0;
  };

  // REQUIRES: granularity > 0, and the page is a multiple of the granularity.
  SharedPages(Bytes page, Bytes granularity) : page_(page), granularity_(granularity) {}

  // Returns true if a request of `size` bytes should share a page. Larger requests get whole pages.
  bool Serves(Bytes size) const { return size.count() <= page_.count() / 2; }

  // Places a block. `take` returns a new page, or nullopt if there is none; in that case `Allocate`
  // returns nullopt. REQUIRES: `Serves(size)`.
  template <typename TakePage>
  std::optional<Placed> Allocate(Bytes size, const TakePage& take) {
    auto at = rooms_.FirstAtLeast(std::max(size, Bytes(1)));
    if (at == rooms_.End()) {
      const std::optional<Page> page = take();
      if (!page) return std::nullopt;
      pages_.try_emplace(page->number, page->range, granularity_);
      rooms_.Insert({page->number, page_});
      at = rooms_.LowerBound({page->number, {}});
    }
    const int64_t number = rooms_.At(at).page;
    Shared& page = pages_.find(number)->second;
    const Block block = *page.blocks.Allocate(size, Hint::kLow);
    ++page.live;
    rooms_.Replace(at, {number, page.blocks.Stats().largest_free});
    return Placed{{page.range.offset + block.offset, block.size, block.handle}, number};
  }

  bool Has(int64_t page) const { return pages_.contains(page); }

  // Frees a block. If its page is now empty, removes the page and returns its range; otherwise
  // returns nullopt. REQUIRES: `Has(page)`.
  std::optional<Block> Free(int64_t page, const Block& block) {
    const auto found = pages_.find(page);
    Shared& shared = found->second;
    shared.blocks.Free({block.offset - shared.range.offset, block.size, block.handle});
    const Room room{page, shared.blocks.Stats().largest_free};
    if (--shared.live > 0) {
      rooms_.Replace(room, room);
      return std::nullopt;
    }
    const Block range = shared.range;
    rooms_.Erase(room);
    pages_.erase(found);
    return range;
  }

  // Returns the largest request that fits in an existing page.
  Bytes Largest() const { return std::min(rooms_.Largest(), Bytes(page_.count() / 2)); }

 private:
  struct Shared {
    Shared(const Block& page, Bytes granularity) : range(page), blocks(page.size, granularity) {}

    Block range;
    BestFit blocks;
    int live = 0;
  };

  // The largest free block of a page.
  struct Room {
    int64_t page = 0;
    Bytes largest;
  };
  struct LowerPage {
    bool operator()(const Room& a, const Room& b) const { return a.page < b.page; }
  };
  struct LargestOf {
    Bytes operator()(const Room& room) const { return room.largest; }
  };

  const Bytes page_;
  const Bytes granularity_;
  std::map<int64_t, Shared> pages_;
  ChunkedSet<Room, LowerPage, LargestOf> rooms_;  // one for each page
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_
