#include "sim/alloc/native.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// This many addresses never run out before memory does.
constexpr Bytes kAddressSpace = Bytes::GiB(int64_t{1} << 24);

}  // namespace

Native::Native(Bytes capacity, Bytes granularity)
    : capacity_(capacity), addresses_(kAddressSpace, kPage), shared_(kPage, granularity) {
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
  std::optional<Block> block;
  if (!shared_.Serves(size)) {
    block = TakePages(size);
  } else if (const auto placed = shared_.Allocate(size, [this] { return TakeSharedPage(); })) {
    block = placed->block;
  }
  if (!block) return std::nullopt;
  requested_ += size;
  allocated_ += block->size;
  requested_of_.emplace(block->offset, size);
  return block;
}

std::optional<SharedPages::Page> Native::TakeSharedPage() {
  const std::optional<Block> page = TakePages(kPage);
  if (!page) return std::nullopt;
  return SharedPages::Page{PageOf(*page), *page};
}

void Native::Free(const Block& block) {
  const auto live = requested_of_.find(block.offset);
  SPILLWAY_CHECK(live != requested_of_.end());
  requested_ -= live->second;
  allocated_ -= block.size;
  requested_of_.erase(live);
  if (!shared_.Has(PageOf(block))) return GivePages(block);
  if (const auto page = shared_.Free(PageOf(block), block)) GivePages(*page);
}

MemoryStats Native::Stats() const {
  const Bytes largest = std::max(RoundDown(capacity_ - reserved_, kPage), shared_.Largest());
  return {requested_, allocated_, reserved_, largest};
}

}  // namespace spillway::sim
