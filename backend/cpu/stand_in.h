// Stands in for operators that nobody has written a kernel for: those of recorded programs.
//
// A stand-in computes nothing that an operator computes. Each of its outputs is a hash of every
// byte that it reads, so that one wrong byte anywhere changes everything computed from it: what an
// order of execution and a plan of memory have to be proven with.

#ifndef SPILLWAY_BACKEND_CPU_STAND_IN_H_
#define SPILLWAY_BACKEND_CPU_STAND_IN_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

// A hash of bytes, the same wherever they lie.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed);

// Overwrites the outputs with what follows from the inputs and the seed, and returns the hash of
// these. Inputs are read before anything is written: an operand may be in both lists.
uint64_t RunStandIn(uint64_t seed, std::span<const std::span<std::byte>> inputs,
                    std::span<const std::span<std::byte>> outputs);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CPU_STAND_IN_H_
