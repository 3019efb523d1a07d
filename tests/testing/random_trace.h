// Traces of any shape, made from small numbers, for property tests to draw and shrink. Every list
// of numbers describes a valid trace. Shorter lists and smaller numbers describe simpler traces.

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
//   0     the phase, and whether the op can be recomputed
//   1..3  inputs: 0 is none. Other numbers say how many tensors ago the input was added; from 128
//         up, the input is a view of the first half of that tensor.
//   4, 5  outputs (0 in number 5 is none): a new tensor of some size, the first input in place
//         under its own name or an alias, or an older storage as a whole
//   6     the op's scratch tensors, batch and set of kernels
using OpSpec = std::array<uint8_t, 7>;

struct TraceSpec {
  std::vector<uint8_t> given;  // inputs, parameters and optimizer states, with their sizes
  std::vector<OpSpec> ops;     // at least one
};

// Returns a validated trace. All sizes are multiples of 4 bytes, from 0 to 65536 bytes.
Trace MakeTrace(const TraceSpec& spec);

// Returns a cost model for the slots of these traces. Each slot has one to three kernels, and most
// kernels have workspaces.
FixedCost MakeCost();

// Returns a text for people: one line per tensor, then one per op. "again" marks recomputable ops.
std::string Describe(const Trace& trace);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_RANDOM_TRACE_H_
