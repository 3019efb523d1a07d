// What must an access wait for? The hazards of a block while it has an owner, and of memory between
// two owners.
//
// Each owner keeps its last write and, per stream, the newest command that touched its block. A
// reader waits for the write; a writer waits for everything. When a block is given back its hazards
// stay with the bytes, in the `HazardMap`, until the next owner inherits them. Two readers never
// wait for each other. Ranges are half-open.

#ifndef SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_
#define SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_

#include <algorithm>
#include <array>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "traces/base/chunked_set.h"

namespace spillway {

// The newest event of each stream in a set: waiting for these is waiting for all, for streams are
// FIFO.
class WaitSet {
 public:
  void Add(Event event) {
    uint32_t& newest = newest_[Index(event.stream)];
    newest = std::max(newest, event.sequence);
  }
  void Add(const WaitSet& other) {
    for (size_t i = 0; i < kStreamCount; ++i) newest_[i] = std::max(newest_[i], other.newest_[i]);
  }
  uint32_t newest(Stream stream) const { return newest_[Index(stream)]; }
  bool operator==(const WaitSet&) const = default;

 private:
  std::array<uint32_t, kStreamCount> newest_{};
};

// The hazards of one owned block.
class Hazards {
 public:
  Hazards() = default;
  // Of a new owner; `inherited` is what its first writer waits for.
  explicit Hazards(const WaitSet& inherited) : touched_(inherited) {}

  // What a reader, or a writer, must wait for.
  Event ForRead() const { return write_; }
  const WaitSet& ForWrite() const { return touched_; }

  void NoteRead(Event event) { touched_.Add(event); }
  void NoteWrite(Event event) {
    write_ = event;
    touched_.Add(event);
  }

 private:
  Event write_;
  WaitSet touched_;
};

// The hazards of memory that has no owner.
class HazardMap {
 public:
  // The owner of `block` gives it back; its last accesses are `touched`.
  void Leave(const Block& block, const WaitSet& touched);

  // What the new owner of `block` inherits: everything that touched any of its bytes.
  WaitSet Take(const Block& block);

  // Everything issued so far has completed.
  void Clear() { ranges_.Clear(); }

 private:
  struct Range {
    Bytes begin, end;
    WaitSet touched;
  };
  struct BeginsBefore {
    bool operator()(const Range& a, const Range& b) const { return a.begin < b.begin; }
  };

  // Disjoint. Bytes in no range were never touched, or have an owner.
  ChunkedSet<Range, BeginsBefore> ranges_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_
