// Stands in for operators of recorded programs that have no kernel.
//
// A stand-in does not compute the operator's result. Each of its outputs is derived from a hash of
// every byte that the op reads. One wrong byte anywhere therefore changes everything computed from
// it, which is enough to test an order of execution and a plan of memory.

#ifndef SPILLWAY_BACKEND_CPU_STAND_IN_H_
#define SPILLWAY_BACKEND_CPU_STAND_IN_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::cpu {

// Returns a hash of the bytes, which does not depend on their address.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed);

// Overwrites the outputs with bytes derived from the inputs and the seed, and returns the hash of
// the inputs. All inputs are read before anything is written, so an operand may be in both lists.
uint64_t RunStandIn(uint64_t seed, std::span<const std::span<std::byte>> inputs,
                    std::span<const std::span<std::byte>> outputs);

}  // namespace spillway::cpu

#endif  // SPILLWAY_BACKEND_CPU_STAND_IN_H_
