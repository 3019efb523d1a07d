// An order of a trace's ops in which each parameter is updated as soon as nothing reads it any
// more, instead of after the backward pass. The gradients then leave the device early. This helps
// because the backward pass needs the largest feature maps of a network last.

#ifndef SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_
#define SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_

#include <cstddef>
#include <vector>

#include "traces/trace.h"

namespace spillway::policies {

// Returns the order in which the states of `count` updates leave the device, as indices of the
// updates. However many are outside, they lie at about equal distances, so that the link has as
// much to do before each update. This is the order of the indices' binary digits, read backwards:
// 0, 4, 2, 6, 1, 5, 3, 7.
std::vector<size_t> LeavingOrder(size_t count);

// Returns the trace with each update moved behind the last op of another phase that uses one of the
// update's storages. Ops with the same place keep their order. A
// tensor that the program holds (`Tensor::held_until`) is held until the same op, or until its last
// use if that comes later now.
Trace WithEarlyUpdates(const Trace& trace);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_EARLY_UPDATES_H_
