// Ops for traces without real computations. Each output is a hash of the op and of every byte that
// the op reads, so one wrong byte anywhere changes everything computed from it.

#ifndef SPILLWAY_TESTS_TESTING_MIXING_H_
#define SPILLWAY_TESTS_TESTING_MIXING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace spillway::testing {

class MixingOps {
 public:
  // REQUIRES: the trace outlives the object.
  explicit MixingOps(const Trace& trace) : trace_(trace), read_(trace.ops.size()) {}

  // Runs one op; usable as an `OpExecutor`. REQUIRES: `op` is an element of the trace's `ops`.
  void Run(const Op& op, std::span<const std::span<std::byte>> inputs,
           std::span<const std::span<std::byte>> outputs, uint64_t seed);

  // Returns, for each op, the hashes of the bytes that it read each time it ran. Consecutive runs
  // with equal hashes count once, so a correct run gives the same result however often ops ran
  // again.
  const std::vector<std::vector<uint64_t>>& read() const { return read_; }

 private:
  const Trace& trace_;
  std::vector<std::vector<uint64_t>> read_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_MIXING_H_
