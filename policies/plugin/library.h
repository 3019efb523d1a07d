// The policies that can be named in a specification: the built-in ones, and those of plugins, which
// are loaded when they are first named.
//
//   vdnn-all                          a built-in policy
//   vdnn-all:algo=memory              with parameters
//   ./mine.so:my-policy:depth=2       of a plugin: a path with a slash, or a file ending in ".so"
//   /opt/policies/mine.so             a plugin's only policy needs no name
//   mine.so:depth=2                   and may have parameters all the same
//
// Not thread-safe; threads that make policies have a library each. The policies themselves outlive
// the library freely.

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

namespace spillway {

// A specification, taken apart. What is not given is empty.
struct PolicySpec {
  std::string plugin;      // path
  std::string policy;      // name
  std::string parameters;  // key=value,...
};

// Looks at the spelling only; never fails. A path must not contain a colon.
PolicySpec ParsePolicySpec(std::string_view specification);

class PolicyLibrary {
 public:
  PolicyLibrary();

  // The policy, guarded: see `GuardedPolicy`. Throws `UsageError` as `PolicyRegistry::Make`, also
  // for a plugin with several policies none of which is named, `InputError` as `Plugin::Load`, and
  // `PolicyError` if the policy cannot be made.
  std::unique_ptr<Policy> Make(std::string_view specification);

  // The built-in policy whose memory this one gets by default, or empty: see
  // `PolicyRegistry::MemoryOf`. Empty for policies of plugins. Throws as `PolicyRegistry::Make`.
  std::string MemoryPolicy(std::string_view specification) const;

  // The registry that a specification chooses from: of its plugin, or the built-in one. Lives as
  // long as the library. Throws `InputError` as `Plugin::Load`.
  const PolicyRegistry& Registry(const PolicySpec& spec);

  // The parameters of the policy `name` in `Registry(spec)`. Throws as `Make`.
  std::vector<ParamInfo> Parameters(const PolicySpec& spec, const std::string& name);

 private:
  const std::shared_ptr<const Plugin>& Load(const std::string& path);

  PolicyRegistry builtin_;
  std::map<std::string, std::shared_ptr<const Plugin>> plugins_;  // by path as given
};

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_PLUGIN_LIBRARY_H_
