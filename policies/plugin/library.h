// The policies that a specification can name: the built-in policies, and the policies of plugins. A
// plugin is loaded when it is first named.
//
//   vdnn-all                          a built-in policy
//   vdnn-all:algo=memory              a built-in policy with parameters
//   ./mine.so:my-policy:depth=2       a policy of a plugin: the path has a slash or ends in ".so"
//   /opt/policies/mine.so             the only policy of a plugin needs no name
//   mine.so:depth=2                   the only policy of a plugin, with parameters
//
// A library is not thread-safe: each thread that makes policies has its own. A policy may outlive
// the library that made it.

#ifndef SPILLWAY_POLICIES_PLUGIN_LIBRARY_H_
#define SPILLWAY_POLICIES_PLUGIN_LIBRARY_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policies/plugin/loader.h"
#include "policies/registry.h"
#include "sim/core/policy.h"

namespace spillway::policies {

// The parts of a specification. A part that is not given is empty.
struct PolicySpec {
  std::string plugin;      // path
  std::string policy;      // name
  std::string parameters;  // key=value,...
};

// Returns the parts of a specification by its spelling alone; never fails. A path must not contain
// a colon.
PolicySpec ParsePolicySpec(std::string_view specification);

class PolicyLibrary {
 public:
  PolicyLibrary();

  // Makes the policy, within a `GuardedPolicy`. Throws `UsageError` as `PolicyRegistry::Make`, and
  // if a plugin has several policies and the specification names none; `InputError` as
  // `Plugin::Load`; `PolicyError` if the policy cannot be made.
  std::unique_ptr<Policy> Make(std::string_view specification);

  // Returns the specification of the policy whose memory this one gets by default: see
  // `PolicyTraits::memory_of`. Empty for policies of plugins. Throws as `PolicyRegistry::Make`.
  std::string MemoryPolicy(std::string_view specification) const;

  // Returns the traits of the policy, which live as long as the library. Throws as `Make`.
  const PolicyTraits& Traits(std::string_view specification);

  // Returns the specifications that the allocator `auto` tries for this one: one with each of the
  // policy's `PolicyTraits::candidates`, or this one alone if the policy has none or the
  // specification already gives one of their parameters. Throws as `Make`.
  std::vector<std::string> Candidates(std::string_view specification);

  // Returns the registry that a specification chooses from: the plugin's, or the built-in one. It
  // lives as long as the library. Throws `InputError` as `Plugin::Load`.
  const PolicyRegistry& Registry(const PolicySpec& spec);

  // Returns the parameters of the policy `name` in `Registry(spec)`. Throws as `Make`.
  std::vector<ParamInfo> Parameters(const PolicySpec& spec, const std::string& name);

 private:
  const std::shared_ptr<const Plugin>& Load(const std::string& path);

  PolicyRegistry builtin_;
  std::map<std::string, std::shared_ptr<const Plugin>> plugins_;  // by path as given
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_PLUGIN_LIBRARY_H_
