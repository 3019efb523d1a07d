// The time of a communication of many GPUs, computed from the links between them.
//
// The GPUs of a group form a ring that visits host after host. A gather or a scatter of S bytes
// among n GPUs takes n - 1 steps, in each of which every GPU sends S / n bytes to the next one; an
// all-reduce takes twice as many, or goes up and down a binary tree if that is faster. Each GPU of
// a host has a network card, and a ring through several hosts is divided over those of the group's
// GPUs. In an exchange (all-to-all), each GPU sends S / n bytes to each other one. So the time is
//   start + sum of the steps' latencies + bytes sent / bandwidth.

#ifndef SPILLWAY_SIM_COST_COLLECTIVE_H_
#define SPILLWAY_SIM_COST_COLLECTIVE_H_

#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::sim {

// Returns the time of a collective, with the links to itself. The first word of the signature of
// its slot is its kind, such as `all_gather`; an unknown one sends all bytes once. REQUIRES:
// op.IsCollective(). Throws `InputError` that names the op if it lacks an attribute, or a value is
// out of range.
Duration CollectiveTime(const Cluster& cluster, const Op& op);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_COLLECTIVE_H_
