// An allocator that keeps its own books of another one, and compares them after every call.

#ifndef SPILLWAY_TESTS_TESTING_ACCOUNTING_H_
#define SPILLWAY_TESTS_TESTING_ACCOUNTING_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/core/forwarding_allocator.h"
#include "sim/core/page_table.h"
#include "sim/core/report.h"

namespace spillway::testing {

class AccountingAllocator final : public ForwardingAllocator {
 public:
  // What is different about an allocator that takes segments of the driver's, and caches them.
  struct Caching {
    Bytes page;  // segments, and what is mapped or unmapped, are multiples of it
    // What the driver must have left for a request of this size when nothing is cached.
    std::function<Bytes(Bytes)> memory_for;
  };

  // Blocks are cut in multiples of `granularity` from an arena of `capacity`.
  AccountingAllocator(Allocator& allocator, Bytes capacity, Bytes granularity,
                      std::optional<Caching> caching = std::nullopt)
      : ForwardingAllocator(allocator),
        capacity_(capacity),
        granularity_(granularity),
        caching_(std::move(caching)) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;

  // What was wrong, one sentence each: blocks that overlap or lie outside, sums that differ from
  // the allocator's, a refusal that changed something or that its own `largest_free` contradicts.
  // Where segments are cached: a block in memory that the driver has not given, memory given back
  // with a live block in it, other sums reserved than given, and a refusal that gave back cached
  // memory is one only if no segment is left without a block in it and the driver has not enough
  // for another.
  const std::vector<std::string>& violations() const { return violations_; }

  // Blocks that are held now.
  size_t live() const { return live_.size(); }

  // Compares with the report of the run that made the calls and has given back everything: the
  // placement log must tell the last calls, in the pool, from a state in
  // which only what persists was held to one in which only that is.
  void Compare(const Trace& trace, const Report& report, PoolId pool,
               std::vector<std::string>& violations) const;

 private:
  struct Call {
    bool allocate = false;
    Block block;
    Bytes allocated;  // just after
  };

  void NoteDriverCalls();
  void NotePages(const DriverCall& call);
  void NoteRefusal(const MemoryStats& before, Bytes largest, Bytes rounded);
  void CompareSums();
  void Fail(std::string what) { violations_.push_back(std::move(what)); }

  const Bytes capacity_;
  const Bytes granularity_;
  const std::optional<Caching> caching_;
  std::map<Bytes, std::pair<Bytes, Bytes>> live_;  // offset -> size, requested
  PageTable pages_;
  // With `caching_`: where the pages begin that the driver has given, and the segments among them.
  std::set<int64_t> given_;
  std::map<Bytes, Bytes> segments_;  // begin -> end
  size_t driver_calls_ = 0;          // that `pages_` knows of
  std::vector<Call> calls_;
  std::vector<std::string> violations_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_ACCOUNTING_H_
