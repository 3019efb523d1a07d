// An allocator that keeps its own books of another one, and compares them after every call.

#ifndef SPILLWAY_TESTS_TESTING_ACCOUNTING_H_
#define SPILLWAY_TESTS_TESTING_ACCOUNTING_H_

#include <map>
#include <string>
#include <vector>

#include "sim/core/page_table.h"
#include "sim/core/report.h"
#include "tests/testing/forwarding.h"

namespace spillway::testing {

class AccountingAllocator final : public ForwardingAllocator {
 public:
  // Blocks are cut in multiples of `granularity` from an arena of `capacity`.
  AccountingAllocator(Allocator& allocator, Bytes capacity, Bytes granularity)
      : ForwardingAllocator(allocator), capacity_(capacity), granularity_(granularity) {}

  std::optional<Block> Allocate(Bytes size, Hint hint) override;
  void Free(const Block& block) override;

  // What was wrong, one sentence each: blocks that overlap or lie outside, sums that differ from
  // the allocator's, a refusal that changed something or that its own `largest_free` contradicts.
  const std::vector<std::string>& violations() const { return violations_; }

  // Blocks that are held now.
  size_t live() const { return live_.size(); }

  // Compares with the report of the run that made the calls and has given back everything: the
  // placement log must tell the last calls, on the device or in the host pool, from a state in
  // which only what persists was held to one in which only that is.
  void Compare(const Trace& trace, const Report& report, bool host,
               std::vector<std::string>& violations) const;

 private:
  struct Call {
    bool allocate = false;
    Block block;
    Bytes allocated;  // just after
  };

  void CompareSums();
  void Fail(std::string what) { violations_.push_back(std::move(what)); }

  const Bytes capacity_;
  const Bytes granularity_;
  std::map<Bytes, std::pair<Bytes, Bytes>> live_;  // offset -> size, requested
  PageTable pages_;
  size_t driver_calls_ = 0;  // that `pages_` knows of
  std::vector<Call> calls_;
  std::vector<std::string> violations_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_ACCOUNTING_H_
