// Packing problems that can be packed to the lower bound but are hard to pack. Each is a rectangle
// of time and memory that was cut into blocks, so that memory is full, or almost full, at every
// moment.

#ifndef SPILLWAY_TESTS_TESTING_TIGHT_H_
#define SPILLWAY_TESTS_TESTING_TIGHT_H_

#include <cstdint>

#include "sim/packing/problem.h"

namespace spillway::testing {

enum class Cut : uint8_t {
  kGuillotine,  // cuts from one side to the other, recursively
  kPinwheel,    // also cuts into four blocks around a fifth
  kCoarse,      // guillotine cuts, many at the same moment
  kBrick,       // neighbours end together, and other blocks take their memory
  kHoles,       // bricks; a tenth of the blocks not live at half time is missing
};

inline constexpr int64_t kTightHeight = 1'048'576;

// Returns a problem of about `blocks` blocks, of which about `overlap` are live at each moment.
// Sizes have no common divisor. A packing of height `kTightHeight` exists, and no lower one.
packing::Problem Tight(Cut cut, int blocks, int overlap, uint32_t seed);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_TIGHT_H_
