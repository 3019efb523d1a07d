#include "backend/cuda/run_memory.h"

#include <iterator>

#include "traces/base/error.h"

namespace spillway::cuda {

RunMemory::RunMemory(Backing backing, Bytes size)
    : backing_(backing), arena_(backing == Backing::kArena ? size : Bytes(0)) {
  if (backing == Backing::kPages) pages_.emplace();
}

DeviceRange RunMemory::At(const Block& block) const {
  switch (backing_) {
    case Backing::kArena:
      SPILLWAY_CHECK(block.end() <= arena_.size());
      return {arena_.data() + block.offset.count(), block.size};
    case Backing::kPages:
      return {pages_->At(block), block.size};
    case Backing::kBlocks:
    case Backing::kSegments:
      break;
  }
  const auto after = segments_.upper_bound(block.offset);
  SPILLWAY_CHECK(after != segments_.begin());
  const auto& [offset, segment] = *std::prev(after);
  SPILLWAY_CHECK(block.end() <= offset + segment.size());
  return {segment.data() + (block.offset - offset).count(), block.size};
}

void RunMemory::OnAllocate(const Block& block) {
  if (backing_ != Backing::kBlocks) return;
  segments_.insert_or_assign(block.offset, DeviceBuffer(block.size));
}

// cudaFree returns when the device is idle, so no command loses memory that it still reads.
void RunMemory::OnFree(const Block& block) {
  if (backing_ == Backing::kBlocks) segments_.erase(block.offset);
}

void RunMemory::OnDriverCall(const DriverCall& call) {
  switch (call.kind) {
    case DriverCall::Kind::kMalloc:
      if (backing_ != Backing::kSegments) return;
      segments_.insert_or_assign(call.range.offset, DeviceBuffer(call.range.size));
      return;
    case DriverCall::Kind::kFree:
      if (backing_ == Backing::kSegments) segments_.erase(call.range.offset);
      return;
    case DriverCall::Kind::kMap:
      if (pages_) pages_->Map(call.range, call.physical);
      return;
    case DriverCall::Kind::kUnmap:
      if (pages_) pages_->Unmap(call.range);
      return;
  }
}

}  // namespace spillway::cuda
