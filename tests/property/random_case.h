// One case of the property tests: a random trace under a random policy in random circumstances, and
// the properties that must hold for it.

#ifndef SPILLWAY_TESTS_PROPERTY_RANDOM_CASE_H_
#define SPILLWAY_TESTS_PROPERTY_RANDOM_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/random_policy.h"
#include "tests/testing/random_trace.h"

namespace spillway::testing {

struct RandomCase {
  TraceSpec trace;
  PolicySpec policy;
  uint8_t budget = 0;     // 0: ample; otherwise 7/8 to 6 times the layer bound
  uint8_t host_pool = 0;  // 0: ample; otherwise picks a size from 0 up
  uint8_t pools = 0;      // number, sizes and speeds of the other pools
  uint8_t alignment = 0;
  uint8_t allocator = 0;     // index into a list
  uint8_t charge_input = 0;  // odd: inputs are copied in
  uint8_t drain_seed = 0;
};

// Sums over all cases, which show that the cases are not all trivial.
struct Tally {
  int64_t cases = 0;
  int64_t fitted = 0;  // the other cases ran out of memory in every run
  int64_t copies = 0;  // copies and reruns count in fitted runs
  int64_t reruns = 0;
  int64_t verbs = 0;
};

// Runs the case in core, on the simulator, and on the CPU in order and in two other legal orders.
// Returns one sentence for each violation of these properties:
// - every op reads the same bytes as in core, and persistent tensors end with the same bytes;
// - the checker finds nothing, and nothing throws;
// - decisions and placements are the simulator's;
// - arena and pools hold the blocks of the logs at every call, and nothing at the end;
// - verbs that return false change nothing, and verbs that return true take effect.
std::vector<std::string> Violations(const RandomCase& random_case, Tally& tally);

// Returns a description of the case for people.
std::string Describe(const RandomCase& random_case);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_PROPERTY_RANDOM_CASE_H_
