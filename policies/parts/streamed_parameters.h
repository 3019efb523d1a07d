// Parameters and optimizer state that live outside the device, for the policies that stream them:
// which tensors they are, and when they are prefetched.
//
// While an op runs, the parameters of the next ops are on their way, as far as the op leaves memory
// free. If they turn out to be in the way, they are released, the one that is needed last first.

#ifndef SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
#define SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_

#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway::policies {

class StreamedParameters {
 public:
  // If `outside` is false, nothing is streamed.
  explicit StreamedParameters(bool outside = false) : outside_(outside) {}

  bool LivesOutside(const Trace& trace, TensorId tensor) const;

  // Prefetches for the ops after this one. To be called in `Policy::BeforeLaunch`.
  void PrefetchAfter(PolicyContext& context, OpId op);

  // Returns true if it has released a prefetched storage. To be called in `Policy::OnAllocFailure`.
  bool MakeRoom(PolicyContext& context);

 private:
  bool outside_;
  std::vector<TensorId> prefetched_;  // in the order of use
};

// Declares the parameter "parameters" with the values inside and outside.
StreamedParameters ReadStreamedParameters(Params& params);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
