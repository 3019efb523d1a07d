// Parameters and optimizer state that live outside the device, shared by the policies that stream
// them: which they are, and when they are prefetched.
//
// While an op runs, what the next ops use is on its way, as far as memory is free that the op has
// not taken. What turns out to be in the way goes back, the furthest first.

#ifndef SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
#define SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_

#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway {

class StreamedParameters {
 public:
  // Without `outside` nothing is streamed.
  explicit StreamedParameters(bool outside = false) : outside_(outside) {}

  bool LivesOutside(const Trace& trace, TensorId tensor) const;

  // For `Policy::BeforeLaunch`.
  void PrefetchAfter(PolicyContext& context, OpId op);

  // For `Policy::OnAllocFailure`: true if something that was prefetched has been released.
  bool MakeRoom(PolicyContext& context);

 private:
  bool outside_;
  std::vector<TensorId> prefetched_;  // in the order of use
};

// The parameter `parameters=inside|outside`.
StreamedParameters ReadStreamedParameters(Params& params);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PARTS_STREAMED_PARAMETERS_H_
