// A plan of the joint planner, as data: the fate of each storage in its gap, and the kernels of
// each op. A plan has no addresses and no times, and any backend can follow it.

#ifndef SPILLWAY_POLICIES_PLAN_PLAN_H_
#define SPILLWAY_POLICIES_PLAN_PLAN_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/kernels/micro_batch.h"
#include "policies/plan/facts.h"
#include "sim/core/policy.h"
#include "traces/trace.h"

namespace spillway::policies {

enum class Fate : uint8_t {
  kKeep,     // stays on the device
  kOffload,  // copied out as soon as it is written, released when memory is short, prefetched
  kEvict,    // dropped after its last use before the gap, recomputed when it is needed
  kOutside,  // a parameter or optimizer state that lives outside between its uses, prefetched
};

struct StoragePlan {
  Fate fate = Fate::kKeep;
  // For kOffload: the copy back starts before this op, or as soon after it as there is room.
  OpId prefetch{};
  // For kEvict: once recomputed, the storage is dropped again whenever the next op does not use it.
  bool again = false;

  bool operator==(const StoragePlan&) const = default;
};

struct JointPlan {
  explicit JointPlan(const Trace& trace)
      : storages(trace.tensors.size()), kernels(trace.ops.size()) {}

  // The run uses at most this much memory, however much the device has.
  Bytes memory = Bytes::Unlimited();
  // The plan is for the trace `WithEarlyUpdates`, which runs unless `policy` decides.
  bool early_updates = false;
  // The specification of the built-in policy that decides instead of the plan; empty for none.
  std::string policy;
  // A storage that has to leave against the plan is dropped if that costs less than copies.
  bool drops = false;
  // Storages that are not kept lie at the high end of the arena, so that they leave no holes
  // between the storages that are kept.
  bool apart = false;
  std::vector<StoragePlan> storages;  // by tensor; only roots have one
  std::vector<KernelPlan> kernels;    // by op; empty: the fastest that fit when the op runs
  // The batches into which kernels may divide theirs; nullopt: none.
  std::optional<MicroBatches> micro;

  bool operator==(const JointPlan&) const = default;
};

// Returns, by tensor, the op that first needs a storage that is not kept after its gap has begun:
// because the op uses the storage, or because it uses another one that is recomputed from it.
std::vector<OpId> NeedsOf(const JointFacts& facts, const JointPlan& plan);

// Returns the plan as a JSON document, which names its trace and has a digest of the whole trace.
std::string FormatPlan(const JointFacts& facts, const JointPlan& plan);

// Returns `JointPlan::early_updates` of such a document: whether `ParsePlan` needs the facts of the
// trace with early updates. Throws `InputError` if the document is malformed.
bool HasEarlyUpdates(std::string_view text, const std::string& origin);

// Reads such a document; `origin` is its path in messages. Throws `InputError` with the place of
// the error if the document is malformed or for another trace, or if a tensor has no gap. It also
// throws if an op does not lie in the gap, or if the cost model does not know an algorithm for the
// slot and the batch.
JointPlan ParsePlan(std::string_view text, const std::string& origin, const JointFacts& facts);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLAN_PLAN_H_
