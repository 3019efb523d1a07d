#include "policies/parts/streamed_parameters.h"

#include <algorithm>

namespace spillway::policies {
bool StreamedParameters::LivesOutside(const Trace& trace, TensorId tensor) const {
  const TensorKind kind = trace.tensor(tensor).kind;
  return outside_ && (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState) &&
         (chosen_.empty() || chosen_[Index(tensor)]);
}

void StreamedParameters::PrefetchAfter(PolicyContext& context, OpId op) {
  if (!outside_ || context.recomputing()) return;
  std::erase_if(prefetched_, [&](TensorId id) { return context.Where(id) == Residency::kOutside; });
  if (uses_.empty()) FindUses(context);
  auto next = std::ranges::upper_bound(uses_, op, {}, [](const auto& use) { return use.first; });
  for (int prepared = 0; next != uses_.end() && prepared < ahead_; ++prepared, ++next) {
    for (const TensorId id : next->second) {
      if (context.Where(id) != Residency::kOutside) continue;
      if (!context.Prefetch(id)) return;
      prefetched_.push_back(id);
    }
  }
}

void StreamedParameters::FindUses(const PolicyContext& context) {
  for (size_t i = 0; i < context.trace().ops.size(); ++i) {
    const auto op = static_cast<OpId>(i);
    std::vector<TensorId> used;
    for (const TensorId id : context.liveness().Storages(op)) {
      if (LivesOutside(context.trace(), id)) used.push_back(id);
    }
    if (!used.empty()) uses_.emplace_back(op, std::move(used));
  }
}

bool StreamedParameters::MakeRoom(PolicyContext& context) {
  while (!prefetched_.empty()) {
    const TensorId last = prefetched_.back();
    prefetched_.pop_back();
    if (context.Release(last)) return true;
  }
  return false;
}

StreamedParameters ReadStreamedParameters(Params& params) {
  return StreamedParameters(params.Enum<bool>(
      "parameters", "inside", {{"inside", false}, {"outside", true}},
      "where parameters and optimizer state live between the ops that use them: on the device, or "
      "outside, prefetched"));
}

}  // namespace spillway::policies
