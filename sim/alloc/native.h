// cudaMalloc and cudaFree as an allocator: every block comes from the driver and goes back to it.
//
// Memory is mapped in pages of 2 MiB. A request of more than half a page takes whole pages. Smaller
// requests share pages, in which they are placed by best fit at the arena's granularity; a page
// without blocks is given back. Offsets are virtual addresses, so free pages need not be adjacent:
// there is no external fragmentation, only rounding. `reserved` is the sum of the pages held.

#ifndef SPILLWAY_SIM_ALLOC_NATIVE_H_
#define SPILLWAY_SIM_ALLOC_NATIVE_H_

#include <map>

#include "sim/alloc/best_fit.h"
#include "sim/alloc/shared_pages.h"
#include "sim/core/replayable_allocator.h"

namespace spillway::sim {

class Native final : public ReplayableAllocator {
 public:
  static constexpr Bytes kPage = Bytes::MiB(2);

  // REQUIRES: granularity > 0, and the page is a multiple of the granularity.
  Native(Bytes capacity, Bytes granularity);

  std::string_view Name() const override { return "native"; }
  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;
  MemoryStats Stats() const override;
  Bytes Reserved() const override { return reserved_; }
  Backing backing() const override { return Backing::kBlocks; }

 private:
  std::optional<Block> TakePages(Bytes size);
  void GivePages(const Block& pages);
  std::optional<SharedPages::Page> TakeSharedPage();
  static int64_t PageOf(const Block& block) { return block.offset.count() / kPage.count(); }

  const Bytes capacity_;
  BestFit addresses_;
  SharedPages shared_;
  std::map<Bytes, Bytes> requested_of_;  // live blocks: offset, bytes requested
  Bytes requested_, allocated_, reserved_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_NATIVE_H_
