#include "sim/engine/links.h"

#include <algorithm>

#include "traces/base/units.h"

namespace spillway {
namespace {

// Raises the rates of all demands together until `capacity` is used up or all are satisfied.
template <size_t kCount>
std::array<int64_t, kCount> MaxMinFair(const std::array<int64_t, kCount>& demand,
                                       int64_t capacity) {
  std::array<int64_t, kCount> rate{};
  std::array<size_t, kCount> order{};
  for (size_t i = 0; i < kCount; ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::pair(demand[a], a) < std::pair(demand[b], b); });
  for (size_t i = 0; i < kCount; ++i) {
    const auto sharers = static_cast<int64_t>(kCount - i);
    rate[order[i]] = std::min(demand[order[i]], capacity / sharers);
    capacity -= rate[order[i]];
  }
  return rate;
}

}  // namespace

Speeds Links::Share(const Rates& demand) const {
  constexpr size_t kIn = Index(Stream::kToDevice);
  constexpr size_t kOut = Index(Stream::kToHost);
  Rates rate = demand;
  const auto copies = MaxMinFair<2>({demand[kIn], demand[kOut]}, duplex_);
  rate[kIn] = copies[0];
  rate[kOut] = copies[1];
  rate = MaxMinFair(rate, dram_);
  Speeds speeds;
  for (size_t i = 0; i < kStreamCount; ++i) {
    if (rate[i] >= demand[i]) {
      speeds[i] = kFullSpeed;
    } else {
      const Int128 speed = static_cast<Int128>(rate[i]) * kFullSpeed / demand[i];
      speeds[i] = std::max<int64_t>(1, static_cast<int64_t>(speed));
    }
  }
  return speeds;
}

}  // namespace spillway
