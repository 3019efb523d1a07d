// The policies that a program knows, by name, and how to make one from a specification.
//
// A specification is NAME or NAME:key=value,key=value, for example "vdnn-all:algo=memory". There is
// no global registry: a program that needs one fills it with `RegisterBuiltinPolicies`.

#ifndef SPILLWAY_POLICIES_REGISTRY_H_
#define SPILLWAY_POLICIES_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"
#include "traces/trace.h"

namespace spillway::policies {

// The least memory in which a policy can run a trace, and the layer that needs it.
struct LeastMemory {
  Bytes size;
  std::string layer;
};

// The properties of a policy that its callers have to know before they make one.
struct PolicyTraits {
  // The policy is tried where all policies are tried. False for policies that need a file, and for
  // `joint`, which takes longer than all others together.
  bool tried_by_default = true;
  // The policy is meant for inference. It also runs a training iteration, but where all policies
  // are tried, this one is tried on inference only.
  bool for_inference = false;
  // The policy runs recorded traces only.
  bool for_recordings = false;
  // `Prepare` may return a trace whose ops have other kernels; `validate` records these, too.
  bool divides_ops = false;
  // Returns the specification of the policy whose memory a single run of this one gets by default;
  // empty for all of the device's memory. Reads only the parameters that it needs.
  std::function<std::string(Params&)> memory_of = nullptr;
  // Returns the least memory for a trace whose blocks are rounded up to `alignment`. May be empty.
  std::function<LeastMemory(const Trace&, Bytes alignment)> least_memory = nullptr;
  // The specification of a policy that fits in the same memory as this one, and that decides
  // sooner; empty for this policy.
  std::string fits_as = {};
  // The sets of parameters that the allocator `auto` tries. If it is empty, `auto` tries the policy
  // as it is.
  std::vector<Params::Values> candidates = {};
};

class PolicyRegistry {
 public:
  // Makes a policy from its parameters. Also called only to learn which parameters exist.
  using Factory = std::function<std::unique_ptr<Policy>(Params&)>;

  struct Entry {
    std::string name;
    std::string description;  // one sentence, with the paper
    Factory factory;
    PolicyTraits traits = {};
  };

  // Throws `InputError` if a policy of that name exists already.
  void Add(std::string name, std::string description, Factory factory, PolicyTraits traits = {});

  // Makes the policy of a specification. Throws `UsageError` for an unknown name (with a
  // suggestion), a malformed specification, and an unknown parameter or value.
  std::unique_ptr<Policy> Make(std::string_view specification) const;

  // Returns the result of `PolicyTraits::memory_of`, or empty without one. Throws as `Make`.
  std::string MemoryPolicy(std::string_view specification) const;

  // All policies, in the order of registration.
  const std::vector<Entry>& entries() const { return entries_; }

  // Returns the traits of the policy with this name. Throws `UsageError` for an unknown name.
  const PolicyTraits& Traits(std::string_view name) const { return Find(name).traits; }

  // Returns the parameters that the policy with this name declares. Throws as `Make`.
  std::vector<ParamInfo> Parameters(std::string_view name) const;

 private:
  const Entry& Find(std::string_view name) const;

  std::vector<Entry> entries_;
};

// Adds all policies of this folder: builtin.cc is their list.
void RegisterBuiltinPolicies(PolicyRegistry& registry);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_REGISTRY_H_
