// Which commands last touched which bytes of an arena: the answer to "what must this access wait
// for?".
//
// Each byte range keeps its last write and, per stream, its newest read. A reader waits for the
// write; a writer, also the next owner of a released range, waits for the write and all the reads.
// Two readers never wait for each other. Ranges are half-open.

#ifndef SPILLWAY_SIM_CORE_HAZARD_MAP_H_
#define SPILLWAY_SIM_CORE_HAZARD_MAP_H_

#include <array>
#include <map>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"

namespace spillway {

// The newest event per stream that an access must wait for.
class WaitSet {
 public:
  void Add(Event event) {
    uint32_t& newest = newest_[Index(event.stream)];
    if (event.sequence > newest) newest = event.sequence;
  }
  uint32_t newest(Stream stream) const { return newest_[Index(stream)]; }

 private:
  std::array<uint32_t, kStreamCount> newest_{};
};

class HazardMap {
 public:
  // Adds to `waits` what a read, or a write, of `block` must wait for.
  void AddReadHazards(const Block& block, WaitSet& waits) const;
  void AddWriteHazards(const Block& block, WaitSet& waits) const;

  // Notes that the command behind `event` reads, or overwrites, `block`. A write forgets what came
  // before it, so its command must have waited for that.
  void RecordRead(const Block& block, Event event);
  void RecordWrite(const Block& block, Event event);

  // Everything issued so far has completed.
  void Clear() { ranges_.clear(); }

 private:
  struct Accesses {
    Event write;
    std::array<uint32_t, kStreamCount> reads{};
    bool operator==(const Accesses&) const = default;
  };
  struct Range {
    Bytes end;
    Accesses accesses;
  };
  // Ranges by their offset; disjoint. Bytes in no range were never touched.
  using Ranges = std::map<Bytes, Range>;

  // Splits the range that contains `offset` in its middle, if one does.
  void SplitAt(Bytes offset);
  Ranges::const_iterator FirstOverlap(Bytes offset) const;

  Ranges ranges_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_HAZARD_MAP_H_
