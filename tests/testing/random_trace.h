// Traces of any shape, made from small numbers: every list of them describes a valid trace, shorter
// lists and smaller numbers describe simpler ones. What property tests draw and shrink.

#ifndef SPILLWAY_TESTS_TESTING_RANDOM_TRACE_H_
#define SPILLWAY_TESTS_TESTING_RANDOM_TRACE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/fixtures.h"
#include "traces/trace.h"

namespace spillway::testing {

// One op. Its numbers, in order:
//   0     phase, and whether the op can be recomputed
//   1..3  inputs: 0 is none; otherwise how far back the tensor was written, from 128 up a view of
//         the first half of it
//   4, 5  outputs (0 is none in 5): what is written, a new tensor of some size, the first input in
//         place under its own or another name, or an older storage as a whole
//   6     scratch, the op's batch, and which kernels there are
using OpSpec = std::array<uint8_t, 7>;

struct TraceSpec {
  std::vector<uint8_t> given;  // inputs, parameters and optimizer states, with their sizes
  std::vector<OpSpec> ops;     // at least one
};

// Validated. All sizes are multiples of 4 bytes, from none to 65536 bytes.
Trace MakeTrace(const TraceSpec& spec);

// Serves the slots of such traces: one to three kernels each, with workspaces.
FixedCost MakeCost();

// For people: one line per tensor, then one per op, "again" if it is recomputable.
std::string Describe(const Trace& trace);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_RANDOM_TRACE_H_
