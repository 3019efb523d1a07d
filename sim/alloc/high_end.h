// vDNN++'s heuristic against fragmentation (section IV-B): requests with a high hint come from the
// top of the arena, all other requests from the low end of the best fit.
//
// The policy decides which tensors get the high hint. There are two readings of "top". In the
// paper's text it is "the highest available address", that is, the highest free block that is large
// enough. In the authors' code it is the last free block in address order; if that block is too
// small, the request fails, even if another block would be large enough.

#ifndef SPILLWAY_SIM_ALLOC_HIGH_END_H_
#define SPILLWAY_SIM_ALLOC_HIGH_END_H_

#include "sim/alloc/pool/chunk_arena.h"
#include "sim/alloc/pool/free_block.h"
#include "sim/alloc/pool/size_bins.h"

namespace spillway::sim {

class HighEndBlocks {
 public:
  enum class Reading : uint8_t { kCode, kText };

  explicit HighEndBlocks(Reading reading) : reading_(reading) {}

  void Insert(const FreeBlock& block) {
    by_size_.Insert(block);
    by_address_.Insert(block);
  }
  void Erase(const FreeBlock& block) {
    by_size_.Erase(block);
    by_address_.Erase(block);
  }
  void Replace(const FreeBlock& block, const FreeBlock& by) {
    by_size_.Replace(block, by);
    by_address_.Replace(block, by);
  }
  template <typename Cut>
  bool Take(Bytes size, Hint hint, const Cut& cut) {
    const auto cut_here = [&](const FreeBlock& block) {
      const auto at = by_address_.LowerBound(block);
      const auto rest = cut(block);
      if (rest) by_address_.Replace(at, *rest);
      if (!rest) by_address_.Erase(at);
      return rest;
    };
    if (hint == Hint::kLow) return by_size_.Take(size, hint, cut_here);
    const auto block = Highest(size);
    if (!block || block->size < size) return false;
    by_size_.Erase(*block);
    if (const auto rest = cut_here(*block)) by_size_.Insert(*rest);
    return true;
  }
  Bytes Largest() const { return by_size_.Largest(); }
  Bytes Largest(Hint hint) const {
    if (hint == Hint::kLow || reading_ == Reading::kText) return Largest();
    const auto last = Highest(Bytes(0));
    return last ? last->size : Bytes(0);
  }

 private:
  // Returns the only block that a request with a high hint may take.
  std::optional<FreeBlock> Highest(Bytes size) const {
    const auto at = by_address_.LastAtLeast(reading_ == Reading::kCode ? Bytes(0) : size);
    return at == by_address_.End() ? std::nullopt : std::optional(by_address_.At(at));
  }

  Reading reading_;
  SizeBins by_size_;
  AddressOrder by_address_;
};

class HighEnd final : public ChunkArena<HighEndBlocks> {
 public:
  using Reading = HighEndBlocks::Reading;

  HighEnd(Bytes capacity, Bytes granularity, Reading reading)
      : ChunkArena(capacity, granularity, HighEndBlocks(reading)) {}

  std::string_view Name() const override { return "high-end"; }
  Bytes LargestFree(Hint hint) const override { return free_.Largest(hint); }
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ALLOC_HIGH_END_H_
