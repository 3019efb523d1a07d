#include "policies/parts/streamed_parameters.h"

#include <algorithm>

namespace spillway::policies {
namespace {

// The number of ops with streamed parameters for which parameters are prefetched.
constexpr int kAhead = 4;

}  // namespace

bool StreamedParameters::LivesOutside(const Trace& trace, TensorId tensor) const {
  const TensorKind kind = trace.tensor(tensor).kind;
  return outside_ && (kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState);
}

void StreamedParameters::PrefetchAfter(PolicyContext& context, OpId op) {
  if (!outside_ || context.recomputing()) return;
  std::erase_if(prefetched_, [&](TensorId id) { return context.Where(id) == Residency::kOutside; });
  const size_t ops = context.trace().ops.size();
  int prepared = 0;
  for (size_t next = Index(op) + 1; next < ops && prepared < kAhead; ++next) {
    bool uses = false;
    for (const TensorId id : context.liveness().Storages(static_cast<OpId>(next))) {
      if (!LivesOutside(context.trace(), id)) continue;
      uses = true;
      if (context.Where(id) != Residency::kOutside) continue;
      if (!context.Prefetch(id)) return;
      prefetched_.push_back(id);
    }
    if (uses) ++prepared;
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
