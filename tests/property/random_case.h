// One case of the property tests: a random trace under a random policy in random circumstances, and
// what must hold for it.

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
  uint8_t budget = 0;     // 0: ample; otherwise a part of what the largest op needs, and up
  uint8_t host_pool = 0;  // 0: ample; otherwise none, or little
  uint8_t pools = 0;      // how many others there are, their sizes and which is faster
  uint8_t alignment = 0;
  uint8_t allocator = 0;     // one of a list
  uint8_t charge_input = 0;  // odd: inputs are copied in
  uint8_t drain_seed = 0;
};

// What the cases did, to see that they are not all trivial.
struct Tally {
  int64_t cases = 0;
  int64_t fitted = 0;  // the rest ran out of memory, everywhere alike
  int64_t copies = 0;  // these in fitted runs
  int64_t reruns = 0;
  int64_t verbs = 0;
};

// Runs the case in core, on the simulator, and on the CPU in order and in two other legal orders.
// The violations of these properties, none if all hold:
// - every op reads the same bytes as in core, and what persists ends with the same bytes;
// - the checker finds nothing, and nothing throws;
// - decisions and placements are the simulator's;
// - arena and pools hold what the logs say at every call, and nothing when all is over;
// - verbs that say false change nothing, those that say true do what they say.
std::vector<std::string> Violations(const RandomCase& random_case, Tally& tally);

// The case for people.
std::string Describe(const RandomCase& random_case);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_PROPERTY_RANDOM_CASE_H_
