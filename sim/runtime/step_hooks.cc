#include "sim/runtime/step_hooks.h"

#include <algorithm>
#include <map>

namespace spillway::sim {

StepHookTable::StepHookTable(const Trace& trace, const Liveness& liveness)
    : hooks_(trace.hooks ? &*trace.hooks : nullptr) {
  if (hooks_ == nullptr) return;
  free_from_.resize(trace.tensors.size());
  host_.resize(trace.ops.size());
  taken_.resize(trace.ops.size());
  given_up_.resize(trace.ops.size());
  for (const HookPlace& place : hooks_->places) {
    if (place.at == trace.ops.size()) continue;
    host_[place.at] += hooks_->pack * place.packed + hooks_->unpack * place.unpacked;
  }
  std::map<TensorId, std::vector<OpId>>
      reads;  // by storage: the ops before which backward takes it
  for (const KeptForBackward& kept : trace.saved) {
    std::vector<OpId>& ops = reads[liveness.Root(kept.tensor)];
    for (const uint32_t at : kept.unpacked) {
      if (at < trace.ops.size()) ops.push_back(static_cast<OpId>(at));
    }
  }
  for (auto& [storage, begins] : reads) {
    std::ranges::sort(begins);
    begins.erase(std::ranges::unique(begins).begin(), begins.end());
    held_.push_back(storage);
    const auto first = liveness.Uses(storage);
    const auto taken = std::ranges::lower_bound(first, begins.empty() ? OpId{0} : begins.front());
    const size_t left = taken == first.begin() ? 0 : Index(*std::prev(taken)) + 1;
    const auto place = std::ranges::lower_bound(hooks_->places, left, {}, &HookPlace::at);
    if (place != hooks_->places.end()) {
      free_from_[Index(storage)] = static_cast<OpId>(place->at);
    }
    // Each use belongs to the latest beginning that is not behind it.
    for (size_t i = 0; i <= begins.size(); ++i) {
      const OpId end = i < begins.size() ? begins[i] : static_cast<OpId>(trace.ops.size());
      const auto uses = liveness.Uses(storage);
      const auto next = std::ranges::lower_bound(uses, end);
      if (next != uses.begin() && (i == 0 || *std::prev(next) >= begins[i - 1])) {
        given_up_[Index(*std::prev(next))].push_back(storage);
      } else if (i > 0) {
        given_up_[Index(begins[i - 1])].push_back(storage);
      }
      if (i < begins.size()) taken_[Index(end)].push_back(storage);
    }
  }
}

}  // namespace spillway::sim
