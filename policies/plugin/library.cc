#include "policies/plugin/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "policies/plugin/crash.h"
#include "policies/plugin/guard.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

// Takes off and returns the text up to the next colon, and takes off the colon.
std::string_view TakeField(std::string_view& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view field = text.substr(0, colon);
  text.remove_prefix(std::min(colon + 1, text.size()));
  return field;
}

// The plugin's policy that a specification means.
std::string ChosenPolicy(const PolicySpec& spec, const PolicyRegistry& registry) {
  if (!spec.policy.empty()) return spec.policy;
  const auto& entries = registry.entries();
  if (entries.size() == 1) return entries.front().name;
  std::vector<std::string> names;
  for (const PolicyRegistry::Entry& entry : entries) names.push_back(entry.name);
  throw UsageError(fmt::format("{}: the plugin has {} policies, name one: {}:NAME (valid: {})",
                               spec.plugin, names.size(), spec.plugin, fmt::join(names, ", ")));
}

}  // namespace

PolicySpec ParsePolicySpec(std::string_view specification) {
  PolicySpec spec;
  std::string_view rest = specification;
  const std::string_view first = TakeField(rest);
  if (first.find('/') == std::string_view::npos && !first.ends_with(".so")) {
    spec.policy = first;
    spec.parameters = rest;
    return spec;
  }
  spec.plugin = first;
  std::string_view after = rest;
  const std::string_view second = TakeField(after);
  if (second.find('=') == std::string_view::npos) {
    spec.policy = second;
    rest = after;
  }
  spec.parameters = rest;
  return spec;
}

PolicyLibrary::PolicyLibrary() { RegisterBuiltinPolicies(builtin_); }

std::unique_ptr<Policy> PolicyLibrary::Make(std::string_view specification) {
  const PolicySpec spec = ParsePolicySpec(specification);
  const PolicyRegistry& registry = Registry(spec);
  const std::string name = spec.plugin.empty() ? spec.policy : ChosenPolicy(spec, registry);
  const std::shared_ptr<const Plugin> plugin = spec.plugin.empty() ? nullptr : Load(spec.plugin);
  std::unique_ptr<Policy> policy;
  const InHook record(name.c_str(), "factory");
  try {
    policy = registry.Make(spec.parameters.empty() ? name : name + ":" + spec.parameters);
  } catch (...) {
    RethrowAsOwn(fmt::format("policy '{}', making it", name));
  }
  if (policy == nullptr) throw PolicyError(fmt::format("policy '{}': its factory made none", name));
  return std::make_unique<GuardedPolicy>(name, std::move(policy), plugin);
}

std::string PolicyLibrary::MemoryPolicy(std::string_view specification) const {
  return ParsePolicySpec(specification).plugin.empty() ? builtin_.MemoryPolicy(specification)
                                                       : std::string();
}

const PolicyRegistry& PolicyLibrary::Registry(const PolicySpec& spec) {
  return spec.plugin.empty() ? builtin_ : Load(spec.plugin)->registry();
}

std::vector<ParamInfo> PolicyLibrary::Parameters(const PolicySpec& spec, const std::string& name) {
  const PolicyRegistry& registry = Registry(spec);
  try {
    return registry.Parameters(name);
  } catch (...) {
    RethrowAsOwn(fmt::format("policy '{}', reading its parameters", name));
  }
}

const std::shared_ptr<const Plugin>& PolicyLibrary::Load(const std::string& path) {
  std::shared_ptr<const Plugin>& plugin = plugins_[path];
  if (plugin == nullptr) plugin = Plugin::Load(path);
  return plugin;
}

}  // namespace spillway
