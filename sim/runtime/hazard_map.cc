#include "sim/runtime/hazard_map.h"

#include <utility>

namespace spillway::sim {

void HazardMap::Leave(const Block& block, const WaitSet& touched) {
  if (block.size > Bytes(0)) ranges_.Insert({block.offset, block.end(), touched});
}

WaitSet HazardMap::Take(const Block& block) {
  WaitSet inherited;
  auto at = ranges_.LowerBound({block.offset, block.offset, {}});
  // A range that begins before the block and reaches into it is cut short.
  if (at != ranges_.Begin() && !ranges_.empty()) {
    const auto previous = ranges_.Previous(at);
    Range range = ranges_.At(previous);
    if (range.end > block.offset) {
      inherited.Add(range.touched);
      const Bytes end = std::exchange(range.end, block.offset);
      ranges_.Replace(previous, range);
      if (end > block.end()) {
        ranges_.Insert({block.end(), end, range.touched});
        return inherited;
      }
    }
  }
  while (at != ranges_.End() && ranges_.At(at).begin < block.end()) {
    Range range = ranges_.At(at);
    inherited.Add(range.touched);
    if (range.end > block.end()) {
      range.begin = block.end();
      ranges_.Replace(at, range);
      break;
    }
    ranges_.Erase(at);
    at = ranges_.LowerBound({block.offset, block.offset, {}});
  }
  return inherited;
}

}  // namespace spillway::sim
