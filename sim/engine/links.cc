#include "sim/engine/links.h"

#include <algorithm>
#include <span>
#include <utility>

#include "traces/base/units.h"

namespace spillway::sim {
namespace {

// Raises the rates of the streams together until `capacity` is used up or all are satisfied; ties
// go by stream. `rate` holds the demand of each stream and is replaced by its share.
void ShareFairly(std::span<const size_t> streams, int64_t capacity, Rates& rate) {
  Int128 wanted = 0;
  for (const size_t stream : streams) wanted += rate[stream];
  if (wanted <= capacity) return;
  std::array<size_t, kStreamCount> order{};
  size_t count = 0;
  for (const size_t stream : streams) {
    size_t at = count++;
    for (;
         at > 0 && std::pair(rate[stream], stream) < std::pair(rate[order[at - 1]], order[at - 1]);
         --at) {
      order[at] = order[at - 1];
    }
    order[at] = stream;
  }
  for (size_t i = 0; i < count; ++i) {
    const auto sharers = static_cast<int64_t>(count - i);
    rate[order[i]] = std::min(rate[order[i]], capacity / sharers);
    capacity -= rate[order[i]];
  }
}

}  // namespace

Links::Links(const Device& device)
    : stream_count_(1 + 2 * (1 + device.pools.size())), dram_(device.dram.bytes_per_second) {
  for (size_t i = 0; i < stream_count_; ++i) all_[i] = i;
  for (size_t lane = 1; lane < kMaxLanes; ++lane) {
    all_[stream_count_++] = Index(StreamOfLane(lane));
  }
  for (size_t i = 0; i <= device.pools.size(); ++i) {
    const PoolId pool = OutsidePool(i);
    const bool joins = i > 0 && device.pools[i - 1].over_host;
    Group& group = joins ? groups_[0] : groups_[group_count_++];
    for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
      group.streams[group.count++] = Index(StreamOf(pool, direction));
    }
    if (joins) continue;
    group.duplex = DuplexOf(device, pool).bytes_per_second;
    group.in = LinkOf(device, pool, Direction::kToDevice).bandwidth.bytes_per_second;
    group.out = LinkOf(device, pool, Direction::kToHost).bandwidth.bytes_per_second;
  }
}

Speeds Links::Share(const Rates& demand, int64_t beside_copy) const {
  Rates rate = demand;
  for (size_t g = 0; g < group_count_; ++g) {
    const Group& group = groups_[g];
    const std::span streams(group.streams.data(), group.count);
    if (group.count > 2) {
      for (const size_t first : {size_t{0}, size_t{1}}) {
        std::array<size_t, kMaxPools> direction{};
        for (size_t i = 0; 2 * i < group.count; ++i) direction[i] = streams[2 * i + first];
        ShareFairly(std::span(direction).first(group.count / 2), first == 0 ? group.in : group.out,
                    rate);
      }
    }
    ShareFairly(streams, group.duplex, rate);
  }
  ShareFairly(std::span(all_).first(stream_count_), dram_, rate);
  Speeds speeds;
  for (size_t i = 0; i < kStreamCount; ++i) {
    if (rate[i] >= demand[i]) {
      speeds[i] = kFullSpeed;
    } else {
      const Int128 speed = static_cast<Int128>(rate[i]) * kFullSpeed / demand[i];
      speeds[i] = std::max<int64_t>(1, static_cast<int64_t>(speed));
    }
  }
  for (size_t i = 1; beside_copy > 0 && i < Index(Stream::kLane1); ++i) {
    if (demand[i] == 0) continue;
    int64_t& kernel = speeds[Index(Stream::kCompute)];
    kernel = std::max<int64_t>(1, kernel - beside_copy);
  }
  return speeds;
}

}  // namespace spillway::sim
