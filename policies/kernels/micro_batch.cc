#include "policies/kernels/micro_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// The kernels of one batch.
struct Size {
  int64_t batch = 0;
  std::span<const Kernel> kernels;
  std::optional<uint32_t> fastest;  // the fastest kernel within the current workspace
};

bool MaySplit(const Op& op) {
  return RowOf(op.type).algorithms && !Holds(op, StepOf(op).whole_batch);
}

std::vector<Size> SizesOf(const CostModel& cost, const Op& op, uint32_t slot,
                          MicroBatches batches) {
  const std::vector<int64_t> available =
      MaySplit(op) ? cost.Batches(op, slot) : std::vector{op.batch};
  std::vector<Size> sizes;
  for (const int64_t batch : ChooseBatches(batches, available)) {
    sizes.push_back({batch, cost.Kernels(op, slot, batch), std::nullopt});
  }
  return sizes;
}

// The dynamic program of section III-B, for one workspace after another in ascending order.
class Divider {
 public:
  Divider(std::vector<Size> sizes, uint32_t slot)
      : sizes_(std::move(sizes)), slot_(slot), best_(Count(sizes_.back().batch) + 1) {
    best_[0].reachable = true;
  }

  std::vector<Division> Desirable() {
    std::set<Bytes> workspaces;
    for (const Size& size : sizes_) {
      for (const Kernel& kernel : size.kernels) workspaces.insert(kernel.workspace);
    }
    std::vector<Division> front;
    for (const Bytes workspace : workspaces) {
      const auto changed = Admit(workspace);
      if (!changed) continue;
      Solve(*changed);
      const Step& whole = best_.back();
      if (!whole.reachable || (!front.empty() && whole.time >= front.back().time)) continue;
      front.push_back({workspace, whole.time, Parts()});
    }
    return front;
  }

 private:
  // T(b), and the index of the first part of c(b) in `sizes_`.
  struct Step {
    bool reachable = false;
    Duration time;
    size_t parts = 0;
    size_t size = 0;
  };

  static size_t Count(int64_t batch) { return static_cast<size_t>(batch); }

  // Admits the kernels that need exactly this workspace. Returns the smallest batch that becomes
  // faster, or nullopt if none does.
  std::optional<size_t> Admit(Bytes workspace) {
    std::optional<size_t> changed;
    for (Size& size : sizes_) {
      for (uint32_t i = 0; i < size.kernels.size(); ++i) {
        if (size.kernels[i].workspace != workspace || (size.fastest && i > *size.fastest)) continue;
        size.fastest = i;
        const Step& now = best_[Count(size.batch)];
        if (changed || (now.reachable && now.time <= size.kernels[i].time)) continue;
        changed = Count(size.batch);
      }
    }
    return changed;
  }

  // Solves for all batches that are at least `from`. Of equally fast divisions, the one with the
  // fewest parts is taken.
  void Solve(size_t from) {
    for (size_t b = from; b < best_.size(); ++b) {
      Step& best = best_[b];
      for (size_t i = 0; i < sizes_.size() && Count(sizes_[i].batch) <= b; ++i) {
        const Step& rest = best_[b - Count(sizes_[i].batch)];
        if (!sizes_[i].fastest || !rest.reachable) continue;
        const Duration time = sizes_[i].kernels[*sizes_[i].fastest].time + rest.time;
        const size_t parts = rest.parts + 1;
        if (best.reachable && std::tie(time, parts) >= std::tie(best.time, best.parts)) continue;
        best = {true, time, parts, i};
      }
    }
  }

  std::vector<KernelRun> Parts() const {
    std::vector<KernelRun> parts;
    for (size_t b = best_.size() - 1; b > 0;) {
      const Size& size = sizes_[best_[b].size];
      parts.push_back({slot_, *size.fastest, size.batch});
      b -= Count(size.batch);
    }
    std::ranges::sort(parts, std::greater(), &KernelRun::batch);
    return parts;
  }

  std::vector<Size> sizes_;  // ascending; the last is the whole batch
  const uint32_t slot_;
  std::vector<Step> best_;  // by batch
};

}  // namespace

std::string ListOfMicroBatches() {
  std::vector<std::string_view> names;
  for (const auto& [name, batches] : kMicroBatchNames) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<int64_t> ChooseBatches(MicroBatches batches, std::span<const int64_t> available) {
  std::vector<int64_t> chosen;
  for (const int64_t batch : available) {
    const bool power = std::has_single_bit(static_cast<uint64_t>(batch));
    const bool may = batches == MicroBatches::kAll || batch == available.back() ||
                     (batches == MicroBatches::kPowerOfTwo && power);
    if (may) chosen.push_back(batch);
  }
  return chosen;
}

const Division* FastestWithin(Front front, Bytes limit) {
  const auto beyond = std::ranges::upper_bound(front, limit, {}, &Division::workspace);
  return beyond == front.begin() ? nullptr : &*(beyond - 1);
}

Front DivisionFronts::Of(const CostModel& cost, const Op& op, uint32_t slot) {
  SPILLWAY_CHECK(slot < op.slots.size());
  const Kernel* const fastest = cost.Kernels(op, slot, op.batch).data();
  const auto [entry, added] = known_.try_emplace({fastest, op.batch, slot});
  if (added) entry->second = Divider(SizesOf(cost, op, slot, batches_), slot).Desirable();
  return entry->second;
}

KernelFronts FrontsOf(const Trace& trace, const CostModel& cost, DivisionFronts& divisions) {
  KernelFronts found;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (!RowOf(trace.ops[i].type).algorithms) continue;
    for (uint32_t slot = 0; slot < trace.ops[i].slots.size(); ++slot) {
      found.kernels.push_back({static_cast<OpId>(i), slot});
      found.fronts.push_back(divisions.Of(cost, trace.ops[i], slot));
    }
  }
  return found;
}

}  // namespace spillway::policies
