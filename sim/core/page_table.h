// A map from addresses to the device memory behind them, for allocators that map pages themselves.
//
// An address without a mapping stands for the memory at the same offset. This holds for all
// addresses of an allocator unless it maps the same memory at several addresses. A mapping is never
// removed.

#ifndef SPILLWAY_SIM_CORE_PAGE_TABLE_H_
#define SPILLWAY_SIM_CORE_PAGE_TABLE_H_

#include <algorithm>
#include <iterator>
#include <map>

#include "sim/core/allocator.h"

namespace spillway::sim {

class PageTable {
 public:
  // Adds the mapping that a call makes. Has no effect on a call that does not name the memory.
  void Note(const DriverCall& call) {
    if (call.kind != DriverCall::Kind::kMap || !call.physical) return;
    mapped_[call.range.offset] = {call.range.end(), *call.physical - call.range.offset};
  }

  bool empty() const { return mapped_.empty(); }

  // Calls `visit` with each range of memory behind `addresses`, in the order of the addresses.
  template <typename Visitor>
  void ForEach(const Block& addresses, Visitor visit) const {
    Bytes at = addresses.offset;
    auto mapping = mapped_.upper_bound(at);
    if (mapping != mapped_.begin()) --mapping;
    for (; at < addresses.end() && mapping != mapped_.end(); ++mapping) {
      if (mapping->second.end <= at) continue;
      if (mapping->first >= addresses.end()) break;
      if (mapping->first > at) {
        visit(Block{at, mapping->first - at});
        at = mapping->first;
      }
      const Bytes end = std::min(addresses.end(), mapping->second.end);
      visit(Block{at + mapping->second.shift, end - at});
      at = end;
    }
    if (at < addresses.end()) visit(Block{at, addresses.end() - at});
  }

  // Returns true iff two ranges of addresses share memory.
  bool Overlap(const Block& a, const Block& b) const {
    bool shared = false;
    ForEach(a, [&](const Block& one) {
      ForEach(b, [&](const Block& other) {
        shared |= one.offset < other.end() && other.offset < one.end();
      });
    });
    return shared;
  }

 private:
  struct Mapping {
    Bytes end;    // end of the addresses
    Bytes shift;  // memory offset minus address
  };
  std::map<Bytes, Mapping> mapped_;  // by first address; the ranges do not overlap
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_PAGE_TABLE_H_
