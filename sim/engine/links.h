// How running commands share the machine: max-min fair rates of a kernel and two copies.
//
// A copy demands its own rate from its direction of the link, both copies together at most the
// duplex limit, and everything that runs shares DRAM bandwidth. Rates are raised together until
// each is satisfied or limited. Integer arithmetic: the same load gives the same speeds everywhere.

#ifndef SPILLWAY_SIM_ENGINE_LINKS_H_
#define SPILLWAY_SIM_ENGINE_LINKS_H_

#include <array>
#include <cstdint>

#include "sim/core/backend.h"
#include "sim/core/device.h"

namespace spillway {

// Bytes per second by stream: of DRAM for a kernel, over the link for a copy. 0 where a stream is
// idle.
using Rates = std::array<int64_t, kStreamCount>;

// Fractions of the speed that a command has alone, in units of 1 / kFullSpeed.
inline constexpr int64_t kFullSpeed = 1 << 16;
using Speeds = std::array<int64_t, kStreamCount>;

class Links {
 public:
  explicit Links(const Device& device)
      : duplex_(device.duplex.bytes_per_second), dram_(device.dram.bytes_per_second) {}

  // Speeds of the streams under the given demands; `kFullSpeed` where the demand is 0.
  // Each is at least 1, so that everything ends.
  Speeds Share(const Rates& demand) const;

 private:
  int64_t duplex_;
  int64_t dram_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_LINKS_H_
