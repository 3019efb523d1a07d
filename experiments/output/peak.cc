#include "experiments/output/peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace spillway {

MemoryPeak FindPeak(const Trace& trace, const Report& report) {
  const auto holds = [](const Placement& change) {
    return change.on_device() &&
           (change.kind == PlacementKind::kAllocate || change.kind == PlacementKind::kFree);
  };
  MemoryPeak peak;
  Bytes held;
  size_t at = 0;  // number of placements up to the peak
  for (size_t i = 0; i < report.placements.size(); ++i) {
    const Placement& change = report.placements[i];
    if (!holds(change)) continue;
    if (change.kind == PlacementKind::kFree) {
      held -= change.requested;
      continue;
    }
    held += change.requested;
    if (held <= peak.requested) continue;
    peak.requested = held;
    at = i + 1;
  }
  if (at > 0) peak.op = trace.op(report.placements[at - 1].op).name;
  std::map<Bytes, const Placement*> live;  // by the offset of the block
  for (size_t i = 0; i < at; ++i) {
    const Placement& change = report.placements[i];
    if (!holds(change)) continue;
    if (change.kind == PlacementKind::kAllocate) {
      live[change.block.offset] = &change;
    } else {
      live.erase(change.block.offset);
    }
  }
  for (const auto& [offset, block] : live) {
    const bool is_tensor = block->tensor != kNoTensor;
    peak.holders.push_back(
        {is_tensor ? trace.tensor(block->tensor).name : "workspace",
         is_tensor ? std::string(Name(trace.tensor(block->tensor).kind)) : "workspace",
         block->requested});
  }
  std::ranges::sort(peak.holders, {}, [](const PeakHolder& holder) {
    return std::tuple(-holder.requested.count(), std::string_view(holder.name));
  });
  return peak;
}

std::string FormatPeak(const MemoryPeak& peak, size_t most) {
  std::map<std::string_view, Bytes> kinds;
  for (const PeakHolder& holder : peak.holders) kinds[holder.kind] += holder.requested;
  std::vector<std::pair<std::string_view, Bytes>> sorted(kinds.begin(), kinds.end());
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string_view, Bytes>::second);
  std::string text = fmt::format("Most is requested at {}: {} ({} bytes)\n", peak.op,
                                 FormatBytes(peak.requested), peak.requested.count());
  for (const auto& [kind, size] : sorted) {
    text += fmt::format("  {:>10}  {} in all\n", FormatBytes(size), kind);
  }
  for (size_t i = 0; i < std::min(most, peak.holders.size()); ++i) {
    const PeakHolder& holder = peak.holders[i];
    text +=
        fmt::format("  {:>10}  {} ({})\n", FormatBytes(holder.requested), holder.name, holder.kind);
  }
  return text;
}

Columns<PeakHolder> PeakColumns() {
  return {
      {"name", "", "of a tensor, or workspace", &PeakHolder::name},
      {"kind", "", "of the tensor, or workspace", &PeakHolder::kind},
      {"requested_bytes", "B", "what it holds", &PeakHolder::requested},
  };
}

}  // namespace spillway
