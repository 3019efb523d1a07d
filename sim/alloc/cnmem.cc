#include "sim/alloc/cnmem.h"

#include <algorithm>

#include "traces/base/error.h"

namespace spillway {

Cnmem::Cnmem(Bytes capacity, Bytes granularity, Bytes initial)
    : capacity_(RoundDown(capacity, granularity)), granularity_(granularity) {
  SPILLWAY_CHECK(granularity > Bytes(0) && initial >= Bytes(0));
  reserved_ = std::min(RoundUp(initial, granularity), capacity_);
  if (reserved_ > Bytes(0)) AddFree(chunks_.AddSegment(Bytes(0), reserved_));
}

void Cnmem::AddFree(uint32_t chunk) {
  chunks_[chunk].requested = ChunkList::kFree;
  free_.Insert({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

void Cnmem::RemoveFree(uint32_t chunk) {
  free_.Erase({chunks_[chunk].size, chunks_[chunk].offset, chunk});
}

uint32_t Cnmem::Grow(Bytes rounded) {
  if (rounded > capacity_ - reserved_) return ChunkList::kNone;
  const uint32_t segment = chunks_.AddSegment(reserved_, rounded);
  calls_.push_back({DriverCall::Kind::kMalloc, {reserved_, rounded}, std::nullopt});
  reserved_ += rounded;
  return segment;
}

std::optional<Block> Cnmem::Allocate(Bytes size, Hint) {
  const Bytes rounded = RoundUp(std::max(size, Bytes(1)), granularity_);
  const auto fit = free_.TakeBestFit(rounded);
  uint32_t chunk = fit ? fit->chunk : Grow(rounded);
  if (chunk == ChunkList::kNone) return std::nullopt;
  if (chunks_[chunk].size > rounded) {
    const uint32_t taken = chunks_.CutLow(chunk, rounded);
    AddFree(chunk);
    chunk = taken;
  }
  chunks_[chunk].requested = size.count();
  requested_ += size;
  allocated_ += rounded;
  return Block{chunks_[chunk].offset, rounded, chunk};
}

void Cnmem::Free(const Block& block) {
  chunks_.CheckTaken(block);
  const uint32_t chunk = block.handle;
  requested_ -= Bytes(chunks_[chunk].requested);
  allocated_ -= block.size;
  AddFree(chunks_.JoinFree(chunk, [this](uint32_t free) { RemoveFree(free); }));
}

MemoryStats Cnmem::Stats() const {
  return {requested_, allocated_, reserved_, std::max(free_.Largest(), capacity_ - reserved_)};
}

}  // namespace spillway
