#include "experiments/output/peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "traces/blocks.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

// Finds the layer that each holder at the peak belongs to.
class Owners {
 public:
  explicit Owners(const Trace& trace) : trace_(trace), liveness_(trace), blocks_(BlocksOf(trace)) {}

  void SetLayer(const Placement& placement, PeakHolder& holder) const {
    OpId op = placement.op;
    if (placement.tensor != kNoTensor) {
      const TensorId root = liveness_.Root(placement.tensor);
      const auto writers = liveness_.Writers(root);
      const bool stays = trace_.tensor(root).kind == TensorKind::kParameter;
      if (!writers.empty() && !stays) {
        op = writers.front();
      } else if (const auto first = liveness_.FirstUse(root)) {
        op = *first;
      }
    }
    const LayerId layer = trace_.op(op).layer;
    holder.layer = trace_.layer(layer).name;
    holder.block = blocks_[Index(layer)];
  }

 private:
  const Trace& trace_;
  const Liveness liveness_;
  const std::vector<std::string> blocks_;
};

// Returns a name that alike layers share: "h.*/mul" for "h.3/mul.97" in the block "h.3".
std::string AlikeName(const PeakHolder& holder) {
  std::string name = holder.layer;
  const size_t dot = name.rfind('.');
  const bool numbered = dot != name.npos && dot + 1 < name.size() &&
                        name.find_first_not_of("0123456789", dot + 1) == name.npos;
  if (numbered) name.resize(dot);
  if (holder.block.empty() || !name.starts_with(holder.block)) return name;
  return fmt::format("{}*{}", StemOf(holder.block), name.substr(holder.block.size()));
}

// Returns the sums of holders with equal names and, for optimizer state, of their own, most bytes
// first, then by name.
template <typename NameOf>
std::vector<PeakSum> SumsOf(const MemoryPeak& peak, const NameOf& name_of) {
  std::map<std::pair<std::string, std::string>, PeakSum> sums;  // by name and kind
  for (const PeakHolder& holder : peak.holders) {
    const bool state = holder.kind == Name(TensorKind::kOptimizerState);
    const std::string name = state ? std::string() : name_of(holder);
    const std::string kind = state ? holder.kind : std::string();
    PeakSum& sum = sums.try_emplace({name, kind}, PeakSum{name, kind, 0, {}}).first->second;
    ++sum.tensors;
    sum.requested += holder.requested;
  }
  std::vector<PeakSum> sorted;
  for (auto& [key, sum] : sums) sorted.push_back(std::move(sum));
  std::ranges::stable_sort(sorted, std::greater(), &PeakSum::requested);
  return sorted;
}

// Returns the text of a sum's name and the number of its blocks.
std::string TitleOf(const PeakSum& sum) {
  if (!sum.kind.empty()) return sum.kind;
  return sum.name.empty() ? "layers of no block" : sum.name;
}

std::string FormatBlocks(const MemoryPeak& peak) {
  const std::vector<PeakSum> blocks = BlockSums(peak);
  const bool any =
      std::ranges::any_of(blocks, [](const PeakSum& sum) { return !sum.name.empty(); });
  if (!any) return "";
  std::map<std::string, std::vector<PeakSum>> alike;  // by the text of their stem
  for (const PeakSum& sum : blocks) {
    const std::string_view stem = StemOf(sum.name);
    const bool numbered = stem.size() < sum.name.size();
    alike[numbered ? fmt::format("{}*", stem) : TitleOf(sum)].push_back(sum);
  }
  std::vector<std::pair<Bytes, std::string>> lines;
  for (const auto& [title, sums] : alike) {
    Bytes all;
    for (const PeakSum& sum : sums) all += sum.requested;
    std::string line = fmt::format("  {:>10}  {}", FormatBytes(all), title);
    if (sums.size() > 1) {
      const std::string least = FormatBytes(sums.back().requested);
      const std::string most = FormatBytes(sums.front().requested);
      line += fmt::format(": {} blocks of {}", sums.size(), most);
      if (least != most) line += fmt::format(" to {}", least);
    }
    lines.emplace_back(all, line + "\n");
  }
  std::ranges::stable_sort(lines, std::greater(), &std::pair<Bytes, std::string>::first);
  std::string text = "by block:\n";
  for (const auto& [all, line] : lines) text += line;
  return text;
}

std::string FormatHolders(const MemoryPeak& peak, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, peak.holders.size()); ++i) {
    const PeakHolder& holder = peak.holders[i];
    text +=
        fmt::format("  {:>10}  {} ({})\n", FormatBytes(holder.requested), holder.name, holder.kind);
  }
  return text;
}

}  // namespace

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
  const Owners owners(trace);
  for (const auto& [offset, block] : live) {
    const bool is_tensor = block->tensor != kNoTensor;
    peak.holders.push_back(
        {is_tensor ? trace.tensor(block->tensor).name : "workspace",
         is_tensor ? std::string(Name(trace.tensor(block->tensor).kind)) : "workspace",
         block->requested,
         {},
         {}});
    owners.SetLayer(*block, peak.holders.back());
  }
  std::ranges::sort(peak.holders, {}, [](const PeakHolder& holder) {
    return std::tuple(-holder.requested.count(), std::string_view(holder.name));
  });
  return peak;
}

std::vector<PeakSum> BlockSums(const MemoryPeak& peak) {
  return SumsOf(peak, [](const PeakHolder& holder) { return holder.block; });
}

std::vector<PeakSum> LayerSums(const MemoryPeak& peak) { return SumsOf(peak, AlikeName); }

std::string FormatPeakSums(const MemoryPeak& peak, size_t most) {
  std::string text = FormatPeak(peak, 0) + FormatBlocks(peak) + "by layer:\n";
  std::vector<PeakSum> layers = LayerSums(peak);
  std::erase_if(layers, [](const PeakSum& sum) { return !sum.kind.empty(); });
  for (size_t i = 0; i < std::min(most, layers.size()); ++i) {
    text += fmt::format("  {:>10}  {}", FormatBytes(layers[i].requested), TitleOf(layers[i]));
    text += layers[i].tensors > 1 ? fmt::format(" ({} tensors)\n", layers[i].tensors) : "\n";
  }
  return text + "by tensor:\n" + FormatHolders(peak, most);
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
  return text + FormatHolders(peak, most);
}

Columns<PeakHolder> PeakColumns() {
  return {
      {"name", "", "of a tensor, or workspace", &PeakHolder::name},
      {"kind", "", "of the tensor, or workspace", &PeakHolder::kind},
      {"requested_bytes", "B", "what it holds", &PeakHolder::requested},
  };
}

Columns<PeakSum> PeakSumColumns() {
  return {
      {"name", "", "of a block, or of alike layers; null: no block, or no layer",
       [](const PeakSum& sum) { return IfAny(sum.name); }},
      {"kind", "", "of tensors that belong to no layer",
       [](const PeakSum& sum) { return IfAny(sum.kind); }},
      {"tensors", "1", "number of tensors", &PeakSum::tensors},
      {"requested_bytes", "B", "what they hold", &PeakSum::requested},
  };
}

}  // namespace spillway::lab
