// Pages of memory that small blocks share, placed in them by best fit: the first page with room, by
// number, then a new one. A page whose last block goes is given back.

#ifndef SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_
#define SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "sim/alloc/best_fit.h"

namespace spillway {

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

  // REQUIRES: granularity > 0 divides the page.
  SharedPages(Bytes page, Bytes granularity) : page_(page), granularity_(granularity) {}

  // Larger requests get pages of their own.
  bool Serves(Bytes size) const { return size.count() <= page_.count() / 2; }

  // REQUIRES: `Serves(size)`. `take` gets a new page: nullopt if there is none.
  template <typename TakePage>
  std::optional<Placed> Allocate(Bytes size, const TakePage& take) {
    for (auto& [number, page] : pages_) {
      if (const auto block = page.blocks.Allocate(size, Hint::kLow)) {
        return Place(number, page, *block);
      }
    }
    const std::optional<Page> page = take();
    if (!page) return std::nullopt;
    Shared& added = pages_.try_emplace(page->number, page->range, granularity_).first->second;
    return Place(page->number, added, *added.blocks.Allocate(size, Hint::kLow));
  }

  bool Has(int64_t page) const { return pages_.contains(page); }

  // Where the page was, if it holds nothing now and is no longer one of these. REQUIRES:
  // `Has(page)`.
  std::optional<Block> Free(int64_t page, const Block& block) {
    const auto found = pages_.find(page);
    Shared& shared = found->second;
    shared.blocks.Free({block.offset - shared.range.offset, block.size, block.handle});
    if (--shared.live > 0) return std::nullopt;
    const Block range = shared.range;
    pages_.erase(found);
    return range;
  }

  // The largest request that fits in one of the pages.
  Bytes Largest() const {
    Bytes largest;
    for (const auto& [number, page] : pages_) {
      largest = std::max(largest, page.blocks.Stats().largest_free);
    }
    return std::min(largest, Bytes(page_.count() / 2));
  }

 private:
  struct Shared {
    Shared(const Block& page, Bytes granularity) : range(page), blocks(page.size, granularity) {}

    Block range;
    BestFit blocks;
    int live = 0;
  };

  static Placed Place(int64_t number, Shared& page, const Block& block) {
    ++page.live;
    return {{page.range.offset + block.offset, block.size, block.handle}, number};
  }

  const Bytes page_;
  const Bytes granularity_;
  std::map<int64_t, Shared> pages_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ALLOC_SHARED_PAGES_H_
