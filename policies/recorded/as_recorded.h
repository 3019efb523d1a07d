// The lifetimes of a recorded program's tensors, as uses in its trace.

#ifndef SPILLWAY_POLICIES_RECORDED_AS_RECORDED_H_
#define SPILLWAY_POLICIES_RECORDED_AS_RECORDED_H_

#include "traces/trace.h"

namespace spillway::policies {

// Returns the trace with one more input for each op after which the program gave a tensor back
// (`Tensor::held_until`): the tensor. So the tensor stays until then. An op that is the first to
// use the tensor may be the one that makes it, so it gets no input; the tensor stays for it anyway.
Trace HeldAsRecorded(Trace trace);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_AS_RECORDED_H_
