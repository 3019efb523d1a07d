// The policies that a program knows, by name, and how to make one from a specification.
//
// A specification is NAME or NAME:key=value,key=value, for example "vdnn-all:algo=memory". There is
// no global registry: whoever needs one fills it with `RegisterBuiltinPolicies`.

#ifndef SPILLWAY_POLICIES_REGISTRY_H_
#define SPILLWAY_POLICIES_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway {

class PolicyRegistry {
 public:
  // Reads its parameters from the argument. Called also just to learn which parameters exist.
  using Factory = std::function<std::unique_ptr<Policy>(Params&)>;

  // The policy, by specification, whose memory a run of this one gets unless it is told otherwise;
  // empty for all of the device's. Reads what it needs of the parameters.
  using MemoryOf = std::function<std::string(Params&)>;

  struct Entry {
    std::string name;
    std::string description;  // one sentence, with the paper
    Factory factory;
    MemoryOf memory_of = nullptr;
  };

  // Throws `InputError` if a policy of that name exists already.
  void Add(std::string name, std::string description, Factory factory,
           MemoryOf memory_of = nullptr);

  // Throws `UsageError`: unknown name (with a suggestion), malformed specification, unknown
  // parameter or value.
  std::unique_ptr<Policy> Make(std::string_view specification) const;

  // See `MemoryOf`. Throws as `Make`.
  std::string MemoryPolicy(std::string_view specification) const;

  // In the order of registration.
  const std::vector<Entry>& entries() const { return entries_; }

  // The parameters that the policy declares. Throws as `Make`.
  std::vector<ParamInfo> Parameters(std::string_view name) const;

 private:
  const Entry& Find(std::string_view name) const;

  std::vector<Entry> entries_;
};

// Everything in this folder, in one visible list.
void RegisterBuiltinPolicies(PolicyRegistry& registry);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_REGISTRY_H_
