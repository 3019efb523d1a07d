#include "policies/mmcnn/slice_schedule.h"

#include <algorithm>
#include <cmath>

namespace spillway::policies {
namespace {

int64_t PartsWithin(double bytes, double limit) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(bytes / limit)));
}

// Schedules a segment. Only the last layer has weights.
void ScheduleSegment(std::span<const MmcnnLayer> layers, double limit, int64_t most_parts,
                     std::span<MmcnnStep> steps) {
  double largest = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    steps[i].parts = PartsWithin(layers[i].maps, limit);
    steps[i].memory = layers[i].maps / static_cast<double>(steps[i].parts);
    largest = std::max(largest, steps[i].memory);
  }
  const double weights = layers.back().weights;
  MmcnnStep& last = steps.back();
  const double free = limit - largest;
  if (free > 0 && weights / free <= static_cast<double>(most_parts)) {
    steps.front().prefetched = PartsWithin(weights, free);
    steps.front().memory += weights / static_cast<double>(steps.front().prefetched);
    last.parts = std::max(last.parts, steps.front().prefetched);
    return;
  }
  const double left = limit - last.memory;
  if (left <= 0) return;  // no part is small enough
  const int64_t parts = PartsWithin(weights, left);
  last.memory += weights / static_cast<double>(parts);
  last.parts = parts;
}

}  // namespace

std::vector<MmcnnStep> ScheduleMmcnn(std::span<const MmcnnLayer> layers, double limit,
                                     int64_t most_parts) {
  std::vector<MmcnnStep> steps(layers.size());
  size_t first = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool ends = layers[i].weights > 0 || i + 1 == layers.size();
    if (!ends) continue;
    const size_t count = i + 1 - first;
    const std::span segment = std::span(steps).subspan(first, count);
    ScheduleSegment(layers.subspan(first, count), limit, most_parts, segment);
    if (layers[i].weights == 0) segment.front().prefetched = 0;  // nothing to fetch
    first = i + 1;
  }
  return steps;
}

}  // namespace spillway::policies
