#include "sim/alloc/stitched.h"

#include <algorithm>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// The most addresses that stand for their own page: more memory than any device has, and few enough
// that an operating system can also supply the stitched addresses behind them.
constexpr Bytes kWindow = Bytes::GiB(256);
constexpr Bytes kAddressSpace = Bytes::GiB(int64_t{1} << 16);

}  // namespace

Stitched::Stitched(Bytes capacity, Bytes granularity, Bytes page)
    : page_(page),
      pages_(capacity.count() / page.count()),
      window_(std::min(pages_, kWindow.count() / page.count())),
      next_address_(page * window_),
      shared_(page, granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0) && page.count() % granularity.count() == 0);
}

// --- Pages --------------------------------------------------------------------------------------

void Stitched::Create(int64_t end) {
  if (end <= created_) return;
  AddFree({created_, end});
  if (const int64_t mapped = std::min(end, window_); mapped > created_) {
    calls_.push_back({DriverCall::Kind::kMap,
                      {page_ * created_, page_ * (mapped - created_)},
                      page_ * created_});
  }
  created_ = end;
}

std::optional<Stitched::Pages> Stitched::TakePages(int64_t count) {
  if (count > pages_ - used_) return std::nullopt;
  Create(used_ + count);
  const auto best = by_length_.BestFit(page_ * count);
  auto at = best ? free_.LowerBound({best->offset.count() / page_.count(), 0}) : free_.Begin();
  used_ += count;
  Pages pages;
  for (; count > 0; at = free_.Begin()) {
    const Run run = free_.At(at);
    const Run taken{run.begin, std::min(run.end, run.begin + count)};
    const Run rest{taken.end, run.end};
    pages.push_back(taken);
    count -= taken.length();
    by_length_.Erase(AsFree(run));
    if (rest.length() == 0) {
      free_.Erase(at);
    } else {
      free_.Replace(at, rest);
      by_length_.Insert(AsFree(rest));
    }
  }
  return pages;
}

void Stitched::GivePages(const Pages& pages) {
  for (const Run& run : pages) {
    used_ -= run.length();
    AddFree(run);
  }
}

void Stitched::AddFree(Run run) {
  const auto next = free_.LowerBound(run);
  const auto previous = next == free_.Begin() ? free_.End() : free_.Previous(next);
  const bool joins_next = next != free_.End() && free_.At(next).begin == run.end;
  const bool joins_previous = previous != free_.End() && free_.At(previous).end == run.begin;
  if (joins_next) {
    by_length_.Erase(AsFree(free_.At(next)));
    run.end = free_.At(next).end;
  }
  if (joins_previous) {
    by_length_.Erase(AsFree(free_.At(previous)));
    run.begin = free_.At(previous).begin;
  }
  by_length_.Insert(AsFree(run));
  if (joins_next && joins_previous) free_.Erase(next);
  if (joins_next || joins_previous) {
    free_.Replace(joins_previous ? previous : next, run);
  } else {
    free_.Insert(run);
  }
}

Bytes Stitched::AddressOf(const Pages& pages) {
  if (pages.size() == 1 && pages[0].end <= window_) return page_ * pages[0].begin;
  const auto [found, is_new] = stitched_.try_emplace(pages, next_address_);
  if (is_new) {
    for (const Run& run : pages) {
      calls_.push_back(
          {DriverCall::Kind::kMap, {next_address_, page_ * run.length()}, page_ * run.begin});
      next_address_ += page_ * run.length();
    }
  }
  return found->second;
}

// --- Blocks -------------------------------------------------------------------------------------

uint32_t Stitched::NewLive() {
  if (unused_.empty()) {
    live_.emplace_back();
    return static_cast<uint32_t>(live_.size() - 1);
  }
  const uint32_t handle = unused_.back();
  unused_.pop_back();
  live_[handle] = Live();
  return handle;
}

std::optional<Block> Stitched::Allocate(Bytes size, Hint) {
  SPILLWAY_CHECK(size >= Bytes(0));
  Live live;
  std::optional<Block> block;
  if (shared_.Serves(size)) {
    if (const auto placed = shared_.Allocate(size, [this] { return TakeSharedPage(); })) {
      live.shared = placed->page;
      live.inner = placed->block;
      block = placed->block;
    }
  } else if (next_address_ + RoundUp(size, page_) <= kAddressSpace) {
    const Bytes rounded = RoundUp(size, page_);
    if (auto pages = TakePages(rounded.count() / page_.count())) {
      live.pages = std::move(*pages);
      block = Block{AddressOf(live.pages), rounded};
    }
  }
  if (!block) return std::nullopt;
  live.requested = size;
  live.taken = true;
  block->handle = NewLive();
  live_[block->handle] = std::move(live);
  requested_ += size;
  allocated_ += block->size;
  return block;
}

std::optional<SharedPages::Page> Stitched::TakeSharedPage() {
  const auto pages = TakePages(1);
  if (!pages) return std::nullopt;
  return SharedPages::Page{pages->front().begin, {AddressOf(*pages), page_}};
}

void Stitched::Free(const Block& block) {
  SPILLWAY_CHECK(block.handle < live_.size() && live_[block.handle].taken);
  const Live live = std::exchange(live_[block.handle], Live());
  unused_.push_back(block.handle);
  requested_ -= live.requested;
  allocated_ -= block.size;
  if (live.shared < 0) {
    GivePages(live.pages);
  } else if (shared_.Free(live.shared, live.inner)) {
    GivePages({{live.shared, live.shared + 1}});
  }
}

MemoryStats Stitched::Stats() const {
  const Bytes largest = std::max(page_ * (pages_ - used_), shared_.Largest());
  return {requested_, allocated_, Reserved(), largest};
}

}  // namespace spillway::sim
