#include "sim/alloc/native.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "traces/base/error.h"

namespace spillway {
namespace {

// The largest request that shares a page.
constexpr Bytes kLargestSmall(Native::kPage.count() / 2);
// Enough addresses that they never run out before memory does.
constexpr Bytes kAddressSpace = Bytes::GiB(int64_t{1} << 24);

}  // namespace

Native::Native(Bytes capacity, Bytes granularity)
    : capacity_(capacity), granularity_(granularity), addresses_(kAddressSpace, kPage) {
  SPILLWAY_CHECK(kPage.count() % granularity.count() == 0);
}

std::optional<Block> Native::TakePages(Bytes size) {
  const Bytes pages = RoundUp(std::max(size, Bytes(1)), kPage);
  if (pages > capacity_ - reserved_) return std::nullopt;
  const std::optional<Block> block = addresses_.Allocate(pages, Hint::kLow);
  if (block) reserved_ += block->size;
  return block;
}

void Native::GivePages(const Block& pages) {
  addresses_.Free(pages);
  reserved_ -= pages.size;
}

std::optional<Block> Native::Allocate(Bytes size, Hint) {
  SPILLWAY_CHECK(size >= Bytes(0));
  std::optional<Block> block = size <= kLargestSmall ? AllocateSmall(size) : TakePages(size);
  if (!block) return std::nullopt;
  requested_ += size;
  allocated_ += block->size;
  requested_of_.emplace(block->offset, size);
  return block;
}

std::optional<Block> Native::AllocateSmall(Bytes size) {
  const auto place = [&](SharedPage& shared) -> std::optional<Block> {
    const std::optional<Block> inner = shared.blocks->Allocate(size, Hint::kLow);
    if (!inner) return std::nullopt;
    ++shared.live;
    return Block{shared.page.offset + inner->offset, inner->size, inner->handle};
  };
  for (auto& [offset, shared] : shared_) {
    if (const auto block = place(shared)) return block;
  }
  const std::optional<Block> page = TakePages(kPage);
  if (!page) return std::nullopt;
  SharedPage shared{*page, std::make_unique<BestFit>(kPage, granularity_), 0};
  return place(shared_.emplace(page->offset, std::move(shared)).first->second);
}

void Native::Free(const Block& block) {
  const auto live = requested_of_.find(block.offset);
  SPILLWAY_CHECK(live != requested_of_.end());
  requested_ -= live->second;
  allocated_ -= block.size;
  requested_of_.erase(live);
  auto after = shared_.upper_bound(block.offset);
  if (after != shared_.begin()) {
    const auto found = std::prev(after);
    SharedPage& shared = found->second;
    if (block.offset < shared.page.end()) {
      shared.blocks->Free({block.offset - shared.page.offset, block.size, block.handle});
      if (--shared.live > 0) return;
      GivePages(shared.page);
      shared_.erase(found);
      return;
    }
  }
  GivePages(block);
}

MemoryStats Native::Stats() const {
  Bytes largest = RoundDown(capacity_ - reserved_, kPage);
  for (const auto& [offset, shared] : shared_) {
    largest = std::max(largest, std::min(shared.blocks->Stats().largest_free, kLargestSmall));
  }
  return {requested_, allocated_, reserved_, largest};
}

}  // namespace spillway
