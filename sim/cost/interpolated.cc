#include "sim/cost/interpolated.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// Returns the point at `x` of the line through (x0, y0) and (x1, y1), rounded up, at least 0.
int64_t OnLine(int64_t x, int64_t x0, int64_t y0, int64_t x1, int64_t y1) {
  const Int128 rise = Int128{y1 - y0} * (x - x0);
  const Int128 run = x1 - x0;
  const Int128 up = rise > 0 ? (rise + run - 1) / run : rise / run;
  return std::max<int64_t>(0, y0 + static_cast<int64_t>(up));
}

CostEntry Between(const CostEntry& below, const CostEntry& above, int64_t batch) {
  const auto line = [&](int64_t y0, int64_t y1) {
    return OnLine(batch, below.batch, y0, above.batch, y1);
  };
  CostEntry entry{below.signature, batch, {}};
  for (const RecordedKernel& low : below.kernels) {
    const auto high = std::ranges::find(above.kernels, low.kernel.algorithm,
                                        [](const auto& kernel) { return kernel.kernel.algorithm; });
    if (high == above.kernels.end()) continue;
    RecordedKernel kernel = low;
    kernel.kernel.time = Duration::Picoseconds(
        std::max<int64_t>(1, line(low.kernel.time.picoseconds(), high->kernel.time.picoseconds())));
    kernel.kernel.workspace =
        Bytes(line(low.kernel.workspace.count(), high->kernel.workspace.count()));
    kernel.kernel.deterministic = low.kernel.deterministic && high->kernel.deterministic;
    entry.kernels.push_back(std::move(kernel));
  }
  return entry;
}

}  // namespace

std::optional<CostTable> Interpolate(const BatchTable& below, const BatchTable& above,
                                     int64_t batch) {
  SPILLWAY_CHECK(below.batch < batch && batch < above.batch);
  const Provenance& one = below.table.provenance;
  const Provenance& other = above.table.provenance;
  if (one.gpu != other.gpu || one.cudnn != other.cudnn || one.math != other.math) {
    return std::nullopt;
  }
  std::map<std::string, std::map<int64_t, const CostEntry*>> recorded;  // by signature and batch
  for (const BatchTable* source : {&below, &above}) {
    for (const CostEntry& entry : source->table.entries) {
      recorded[entry.signature].try_emplace(entry.batch, &entry);
    }
  }
  CostTable table;
  table.provenance = one;
  table.in_sequence =
      Duration::Picoseconds(OnLine(batch, below.batch, below.table.in_sequence.picoseconds(),
                                   above.batch, above.table.in_sequence.picoseconds()));
  for (const auto& [signature, by_batch] : recorded) {
    const auto after = by_batch.upper_bound(batch);
    for (auto entry = by_batch.begin(); entry != after; ++entry) {
      table.entries.push_back(*entry->second);
    }
    if (after == by_batch.begin() || after == by_batch.end()) continue;
    const CostEntry& nearest = *std::prev(after)->second;
    if (nearest.batch == batch) continue;
    CostEntry entry = Between(nearest, *after->second, batch);
    if (!entry.kernels.empty()) table.entries.push_back(std::move(entry));
  }
  return table;
}

}  // namespace spillway::sim
