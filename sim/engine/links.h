// The sharing of the machine by running commands: max-min fair rates of a kernel and of the copies
// of each pool.
//
// A copy demands its own rate from its direction of its pool's link. Both copies of a link together
// get at most its duplex limit, and everything that runs shares the DRAM bandwidth. Pools that are
// reached over the host's link share each direction and the duplex limit with it. Rates are raised
// together until each is satisfied or limited. The arithmetic uses integers: the same load gives
// the same speeds everywhere.

#ifndef SPILLWAY_SIM_ENGINE_LINKS_H_
#define SPILLWAY_SIM_ENGINE_LINKS_H_

#include <array>
#include <cstdint>

#include "sim/core/backend.h"
#include "sim/core/device.h"

namespace spillway::sim {

// Bytes per second by stream: DRAM traffic of a kernel, link traffic of a copy. The rate of an idle
// stream is 0.
using Rates = std::array<int64_t, kStreamCount>;

// Fractions of the speed that a command has when it runs alone, in units of 1 / kFullSpeed.
inline constexpr int64_t kFullSpeed = 1 << 16;
using Speeds = std::array<int64_t, kStreamCount>;

class Links {
 public:
  explicit Links(const Device& device);

  // Returns the speeds of the streams under the given demands; `kFullSpeed` for a demand of 0. The
  // kernel of lane 0 loses the speed `beside_copy` to each copy that runs. Each speed is at least
  // 1, so that every command ends.
  Speeds Share(const Rates& demand, int64_t beside_copy = 0) const;

 private:
  // The streams whose copies share a link.
  struct Group {
    std::array<size_t, 2 * kMaxPools> streams{};
    size_t count = 0;
    int64_t duplex = 0;
    // The limits of each direction, for a link shared by several pools. The copies of a single pool
    // do not exceed the limits.
    int64_t in = 0;
    int64_t out = 0;
  };

  std::array<Group, kMaxPools> groups_;
  size_t group_count_ = 0;
  std::array<size_t, kStreamCount> all_{};  // the streams in use
  size_t stream_count_;                     // their number
  int64_t dram_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_ENGINE_LINKS_H_
