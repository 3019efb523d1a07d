// How running commands share the machine: max-min fair rates of a kernel and of the copies of each
// pool.
//
// A copy demands its own rate from its direction of its pool's link, both copies of a link together
// at most its duplex limit, and everything that runs shares DRAM bandwidth. Pools that are reached
// over the host's link share both with it. Rates are raised together until each is satisfied or
// limited. Integer arithmetic: the same load gives the same speeds everywhere.

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
  explicit Links(const Device& device);

  // Speeds of the streams under the given demands; `kFullSpeed` where the demand is 0.
  // Each is at least 1, so that everything ends.
  Speeds Share(const Rates& demand) const;

 private:
  // Streams whose copies share a link.
  struct Group {
    std::array<size_t, 2 * kMaxPools> streams{};
    size_t count = 0;
    int64_t duplex = 0;
    // Of each direction, for links of several pools; the copies of one keep to it by themselves.
    int64_t in = 0;
    int64_t out = 0;
  };

  std::array<Group, kMaxPools> groups_;
  size_t group_count_ = 0;
  size_t stream_count_;  // those in use
  int64_t dram_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_ENGINE_LINKS_H_
