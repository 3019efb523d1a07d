// Parameters and optimizer state that live outside the device, for the policies that stream them:
// which tensors they are, and when they are prefetched.
//
// While an op runs, the parameters of the next ops are on their way, as far as the op leaves memory
// free. If they turn out to be in the way, they are released, the one that is needed last first.
// An object serves one run.

#ifndef SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
#define SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_

#include <utility>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway::policies {

class StreamedParameters {
 public:
  // Streams all of them, or nothing.
  explicit StreamedParameters(bool outside = false) : outside_(outside) {}
  // Streams the storages for which `chosen` is true. They are prefetched for the next `ahead` ops
  // that use some.
  StreamedParameters(std::vector<bool> chosen, int ahead)
      : outside_(true), chosen_(std::move(chosen)), ahead_(ahead) {}

  bool LivesOutside(const Trace& trace, TensorId tensor) const;

  // Prefetches for the ops after this one. To be called in `Policy::BeforeLaunch`.
  void PrefetchAfter(PolicyContext& context, OpId op);

  // Returns true if it has released a prefetched storage. To be called in `Policy::OnAllocFailure`.
  bool MakeRoom(PolicyContext& context);

 private:
  void FindUses(const PolicyContext& context);

  bool outside_;
  std::vector<bool> chosen_;  // by tensor; empty: all
  int ahead_ = 4;
  // The ops that use streamed storages, with these, in their order.
  std::vector<std::pair<OpId, std::vector<TensorId>>> uses_;
  std::vector<TensorId> prefetched_;  // in the order of use
};

// Declares the parameter "parameters" with the values inside and outside.
StreamedParameters ReadStreamedParameters(Params& params);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
