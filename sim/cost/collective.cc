#include "sim/cost/collective.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

#include "sim/core/cost_model.h"
#include "sim/cost/kernel_time.h"

namespace spillway::sim {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 24;

// An all-reduce sends its bytes so much faster than a scatter and a gather: measured between two
// H200 (experiments/evidence/collectives).
constexpr double kAllReduceGain = 1.18;

double Seconds(Duration time) { return static_cast<double>(time.picoseconds()) * 1e-12; }

}  // namespace

Duration CollectiveTime(const Cluster& cluster, const Op& op) {
  const int64_t ranks = op.IntAttribute("ranks", 1, kMostRanks);
  const int64_t stride = op.IntAttribute("stride", 0, kMostRanks);
  const double bytes = std::max(0.0, op.NumberAttribute("bytes"));
  if (ranks == 1) return cluster.start;
  const std::string_view signature = op.slots.front().signature;
  const std::string_view kind = signature.substr(0, signature.find(' '));

  const int64_t here = std::clamp<int64_t>(cluster.gpus / std::max<int64_t>(stride, 1), 1, ranks);
  const int64_t hosts = (ranks + here - 1) / here;
  const auto rate = [](const Link& link) {
    return static_cast<double>(link.bandwidth.bytes_per_second);
  };
  const double inside = rate(cluster.inside);
  const double outside = rate(cluster.outside);
  const double in_step = Seconds(cluster.inside.latency);
  const double out_step = Seconds(cluster.outside.latency);
  const auto n = static_cast<double>(ranks);
  const double ring = hosts == 1 ? inside : std::min(inside, outside * static_cast<double>(here));
  const double steps =
      static_cast<double>(hosts - 1) * out_step + static_cast<double>(ranks - hosts) * in_step;

  double seconds = steps + bytes / ring;
  if (kind == "send" || kind == "receive") {
    seconds = here > 1 ? in_step + bytes / inside : out_step + bytes / outside;
  } else if (kind == "all_gather" || kind == "reduce_scatter") {
    seconds = steps + bytes * (n - 1) / n / ring;
  } else if (kind == "all_reduce") {
    const auto levels = [](int64_t count) {
      return static_cast<double>(std::bit_width(static_cast<uint64_t>(count - 1)));
    };
    const double rate_here = kAllReduceGain * ring;
    const double tree = levels(hosts) * out_step + levels(here) * in_step + bytes / rate_here;
    seconds = 2 * std::min(steps + bytes * (n - 1) / n / rate_here, tree);
  } else if (kind == "all_to_all") {
    const double there = n - static_cast<double>(here);
    seconds = std::max(in_step + bytes * (n - 1) / n / inside,
                       hosts == 1 ? 0 : out_step + bytes * there / n / outside);
  }
  return cluster.start + TimeOfSeconds(seconds);
}

}  // namespace spillway::sim
