// The events that an access to memory must wait for: the hazards of a block while it has an owner,
// and of memory between two owners.
//
// Each owner keeps its last write and, per stream, the newest command that touched its block. A
// reader waits for the last write; a writer waits for every command. When a block is given back,
// its hazards stay with its bytes in the `HazardMap` until the next owner inherits them. Two
// readers never wait for each other. Ranges are half-open.

#ifndef SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_
#define SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_

#include <algorithm>
#include <array>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "traces/base/chunked_set.h"

namespace spillway::sim {

// A set of events, reduced to the newest event of each stream. Streams are FIFO, so waiting for the
// newest events means waiting for all events.
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
  // The hazards of a block with a new owner, whose first writer waits for `inherited`.
  explicit Hazards(const WaitSet& inherited) : touched_(inherited) {}

  // Returns the events that a reader, or a writer, must wait for.
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
  // The owner of `block` gives it back. `touched` are the block's newest accesses.
  void Leave(const Block& block, const WaitSet& touched);

  // Returns the hazards that the new owner of `block` inherits: every access to any of its bytes.
  // Removes them from the map.
  WaitSet Take(const Block& block);

  // Forgets all hazards, because every issued command has completed.
  void Clear() { ranges_.Clear(); }

 private:
  struct Range {
    Bytes begin, end;
    WaitSet touched;
  };
  struct BeginsBefore {
    bool operator()(const Range& a, const Range& b) const { return a.begin < b.begin; }
  };

  // The ranges do not overlap. Bytes in no range were never touched, or have an owner.
  ChunkedSet<Range, BeginsBefore> ranges_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_HAZARD_MAP_H_
