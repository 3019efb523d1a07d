#include "sim/alloc/stitched.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "traces/base/error.h"

namespace spillway {
namespace {

// Addresses that mean their own page, at most: more than any device has, and little enough that
// stitched addresses after them can be had from an operating system.
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
  auto run = best ? free_.find(best->offset.count() / page_.count()) : free_.begin();
  used_ += count;
  Pages pages;
  for (; count > 0; run = free_.begin()) {
    const auto [begin, end] = RemoveFree(run);
    const int64_t taken = std::min(count, end - begin);
    pages.push_back({begin, begin + taken});
    if (begin + taken < end) AddFree({begin + taken, end});
    count -= taken;
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
  auto next = free_.lower_bound(run.begin);
  if (next != free_.end() && next->first == run.end) run.end = RemoveFree(next++).end;
  if (next != free_.begin() && std::prev(next)->second == run.begin) {
    run.begin = RemoveFree(std::prev(next)).begin;
  }
  free_.emplace_hint(next, run.begin, run.end);
  by_length_.Insert({page_ * run.begin, page_ * run.length()});
}

Stitched::Run Stitched::RemoveFree(std::map<int64_t, int64_t>::iterator at) {
  const Run run{at->first, at->second};
  by_length_.Erase({page_ * run.begin, page_ * run.length()});
  free_.erase(at);
  return run;
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

}  // namespace spillway
