// Packing problems that can be packed to the bound and are hard to: a rectangle of time and memory
// that has been cut into blocks, so that memory is full all the time, or almost.

#ifndef SPILLWAY_TESTS_TESTING_TIGHT_H_
#define SPILLWAY_TESTS_TESTING_TIGHT_H_

#include <cstdint>

#include "sim/packing/problem.h"

namespace spillway::testing {

enum class Cut : uint8_t {
  kGuillotine,  // from one side to the other, again and again
  kPinwheel,    // also into four around a fifth
  kCoarse,      // guillotine, where cuts through time coincide
  kBrick,       // neighbours end together, and others take their memory
  kHoles,       // bricks, of which a tenth is missing where memory is not full
};

inline constexpr int64_t kTightHeight = 1'048'576;

// About so many blocks, of which about `overlap` are live at a moment; sizes are multiples of
// nothing. A packing of `kTightHeight` exists, and no lower one.
packing::Problem Tight(Cut cut, int blocks, int overlap, uint32_t seed);

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_TIGHT_H_
