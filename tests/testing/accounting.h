// An allocator that keeps its own accounts of another allocator and compares them after every call.

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
  // The properties of an allocator that takes segments from the driver and caches them.
  struct Caching {
    Bytes page;  // segments and mapped or unmapped ranges are multiples of a page
    // Returns the bytes that the driver must have free to serve a request of this size when nothing
    // is cached.
    std::function<Bytes(Bytes)> memory_for;
  };

  // `allocator` must cut blocks in multiples of `granularity` from an arena of `capacity`.
  AccountingAllocator(Allocator& allocator, Bytes capacity, Bytes granularity,
                      std::optional<Caching> caching = std::nullopt)
      : ForwardingAllocator(allocator),
        capacity_(capacity),
        granularity_(granularity),
        caching_(std::move(caching)) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;

  // Returns one sentence for each error found:
  // - two live blocks overlap, or a block lies outside the arena;
  // - the sums differ from the allocator's own;
  // - a refused request changed something, or `LargestFree` had promised a block for it.
  //
  // An allocator with `caching` is also at fault in each of these cases:
  // - a block lies in memory that the driver has not given;
  // - memory with a live block in it was given back;
  // - the reserved sum differs from the memory that the driver has given;
  // - a request was refused although a segment without live blocks remained, or although the driver
  //   had memory for it. A refusal may give cached memory back.
  const std::vector<std::string>& violations() const { return violations_; }

  // Returns the number of blocks held now.
  size_t live() const { return live_.size(); }

  // Compares the calls with the report of the run that made them and then freed every block. The
  // placement log must match the last calls in `pool`. It must begin and end with only persistent
  // tensors held. Appends one sentence per error to `violations`.
  void Compare(const Trace& trace, const Report& report, PoolId pool,
               std::vector<std::string>& violations) const;

 private:
  struct Call {
    bool allocate = false;
    Block block;
    Bytes allocated;  // after this call
  };

  void NoteDriverCalls();
  void NotePages(const DriverCall& call);
  void NoteRefusal(const MemoryStats& before, Bytes largest, Bytes rounded);
  void CompareSums();
  void Fail(std::string what) { violations_.push_back(std::move(what)); }

  const Bytes capacity_;
  const Bytes granularity_;
  const std::optional<Caching> caching_;
  std::map<Bytes, std::pair<Bytes, Bytes>> live_;  // offset -> (size, requested)
  PageTable pages_;
  // Used with `caching_`: the first bytes of the pages that the driver has given.
  std::set<int64_t> given_;
  std::map<Bytes, Bytes> segments_;  // segments from cudaMalloc: begin -> end
  size_t driver_calls_ = 0;          // the number of calls that `pages_` has noted
  std::vector<Call> calls_;
  std::vector<std::string> violations_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_ACCOUNTING_H_
