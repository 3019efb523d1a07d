// A plan of the joint planner, as data: what becomes of each storage in its gap, and the kernels of
// each op. It says nothing of addresses or times, and any backend can follow it.

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

namespace spillway {

enum class Fate : uint8_t {
  kKeep,     // stays on the device
  kOffload,  // copied out as soon as it is written, given back where memory is short, prefetched
  kEvict,    // dropped with its last use before the gap, rebuilt where it is needed
};

struct StoragePlan {
  Fate fate = Fate::kKeep;
  // kOffload: the copy back starts before this op, or as soon after as there is room.
  OpId prefetch{};
  // kEvict: once rebuilt, it is dropped again whenever the next op does not use it.
  bool again = false;

  bool operator==(const StoragePlan&) const = default;
};

struct JointPlan {
  explicit JointPlan(const Trace& trace)
      : storages(trace.tensors.size()), kernels(trace.ops.size()) {}

  // It is followed in no more than this, however much there is.
  Bytes memory = Bytes::Unlimited();
  // It is one of `WithEarlyUpdates`, which is what runs, but where another policy decides.
  bool early_updates = false;
  // The built-in policy that decides instead, by its specification; empty: the rest does.
  std::string policy;
  // What has to give way against the plan is dropped where that costs less than copies.
  bool drops = false;
  // What is not kept lies at the high end of the arena, so that it leaves no holes between what is.
  bool apart = false;
  std::vector<StoragePlan> storages;  // by tensor; of roots
  std::vector<KernelPlan> kernels;    // by op; empty: the fastest that fit in what is free then
  // Into which batches these may divide theirs; nullopt: none.
  std::optional<MicroBatches> micro;

  bool operator==(const JointPlan&) const = default;
};

// By tensor: the op for which a storage that is not kept is needed first after its gap has begun,
// directly or to rebuild another.
std::vector<OpId> NeedsOf(const JointFacts& facts, const JointPlan& plan);

// As a JSON document, which names the trace with a digest of all of it.
std::string FormatPlan(const JointFacts& facts, const JointPlan& plan);

// Whether such a document has early updates: of the facts that `ParsePlan` needs. Throws
// `InputError` if it is malformed.
bool HasEarlyUpdates(std::string_view text, const std::string& origin);

// Reads such a document. `origin` stands for its path in messages. Throws `InputError` with the
// place: the document is malformed, or of another trace; a tensor has no gap; an op does not lie in
// it; an algorithm is not one that the cost model knows for the slot and the batch.
JointPlan ParsePlan(std::string_view text, const std::string& origin, const JointFacts& facts);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLAN_PLAN_H_
