#include "policies/plugin/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "policies/plugin/crash.h"
#include "policies/plugin/guard.h"
#include "traces/base/error.h"

namespace spillway::policies {
namespace {

// Removes the text up to the next colon, and the colon, and returns that text without the colon.
std::string_view TakeField(std::string_view& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view field = text.substr(0, colon);
  text.remove_prefix(std::min(colon + 1, text.size()));
  return field;
}

// Returns the name of the policy that a specification means.
std::string ChosenPolicy(const PolicySpec& spec, const PolicyRegistry& registry) {
  if (!spec.policy.empty() || spec.plugin.empty()) return spec.policy;
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
  const std::string name = ChosenPolicy(spec, registry);
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

const PolicyTraits& PolicyLibrary::Traits(std::string_view specification) {
  const PolicySpec spec = ParsePolicySpec(specification);
  const PolicyRegistry& registry = Registry(spec);
  return registry.Traits(ChosenPolicy(spec, registry));
}

std::vector<std::string> PolicyLibrary::Candidates(std::string_view specification) {
  const PolicySpec spec = ParsePolicySpec(specification);
  const std::string name = ChosenPolicy(spec, Registry(spec));
  const Params::Values given = ParseSpecification("policy", ":" + spec.parameters).values;
  std::vector<std::string> candidates;
  for (Params::Values values : Traits(specification).candidates) {
    const size_t chosen = values.size();
    values.insert(given.begin(), given.end());
    if (values.size() != chosen + given.size()) return {std::string(specification)};
    std::string text = spec.plugin.empty() ? name : spec.plugin + ":" + name;
    char separator = ':';
    for (const auto& [key, value] : values) {
      text += fmt::format("{}{}={}", std::exchange(separator, ','), key, value);
    }
    candidates.push_back(std::move(text));
  }
  if (candidates.empty()) candidates.emplace_back(specification);
  return candidates;
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

}  // namespace spillway::policies
