// Ops for traces that compute nothing: each output is a hash of the op and of every byte that the
// op reads, so that one wrong byte anywhere changes everything computed from it.

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
  // The trace outlives the object.
  explicit MixingOps(const Trace& trace) : trace_(trace), read_(trace.ops.size()) {}

  // An `OpExecutor`. REQUIRES: `op` is one of the trace's own.
  void Run(const Op& op, std::span<const std::span<std::byte>> inputs,
           std::span<const std::span<std::byte>> outputs, uint64_t seed);

  // By op: hashes of what it read each time it ran, runs with equal ones counted once. Equal to
  // those of a sound run, however often ops ran again.
  const std::vector<std::vector<uint64_t>>& read() const { return read_; }

 private:
  const Trace& trace_;
  std::vector<std::vector<uint64_t>> read_;
};

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_MIXING_H_
