#include "sim/core/hazard_map.h"

#include <algorithm>
#include <iterator>

namespace spillway {

HazardMap::Ranges::const_iterator HazardMap::FirstOverlap(Bytes offset) const {
  auto it = ranges_.upper_bound(offset);
  if (it != ranges_.begin() && std::prev(it)->second.end > offset) --it;
  return it;
}

void HazardMap::AddReadHazards(const Block& block, WaitSet& waits) const {
  for (auto it = FirstOverlap(block.offset); it != ranges_.end() && it->first < block.end(); ++it) {
    waits.Add(it->second.accesses.write);
  }
}

void HazardMap::AddWriteHazards(const Block& block, WaitSet& waits) const {
  for (auto it = FirstOverlap(block.offset); it != ranges_.end() && it->first < block.end(); ++it) {
    const Accesses& accesses = it->second.accesses;
    waits.Add(accesses.write);
    for (size_t stream = 0; stream < kStreamCount; ++stream) {
      waits.Add({static_cast<Stream>(stream), accesses.reads[stream]});
    }
  }
}

void HazardMap::SplitAt(Bytes offset) {
  auto it = ranges_.lower_bound(offset);
  if (it == ranges_.begin()) return;
  --it;
  if (it->second.end <= offset) return;
  ranges_.emplace_hint(std::next(it), offset, it->second);
  it->second.end = offset;
}

void HazardMap::RecordRead(const Block& block, Event event) {
  SplitAt(block.offset);
  SplitAt(block.end());
  // Bytes that were never touched have nothing to protect but this read.
  Bytes covered = block.offset;
  auto it = ranges_.lower_bound(block.offset);
  const auto note = [&](Accesses& accesses) {
    uint32_t& newest = accesses.reads[Index(event.stream)];
    newest = std::max(newest, event.sequence);
  };
  while (covered < block.end()) {
    if (it == ranges_.end() || it->first > covered) {
      const Bytes end = it == ranges_.end() ? block.end() : std::min(it->first, block.end());
      it = ranges_.emplace_hint(it, covered, Range{end, {}});
    }
    note(it->second.accesses);
    covered = it->second.end;
    ++it;
  }
}

void HazardMap::RecordWrite(const Block& block, Event event) {
  if (block.size == Bytes(0)) return;
  SplitAt(block.offset);
  SplitAt(block.end());
  ranges_.erase(ranges_.lower_bound(block.offset), ranges_.lower_bound(block.end()));
  ranges_.emplace(block.offset, Range{block.end(), {event, {}}});
}

}  // namespace spillway
