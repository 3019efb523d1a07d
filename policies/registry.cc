#include "policies/registry.h"

#include <fmt/format.h>

#include <utility>

#include "traces/base/error.h"

namespace spillway::policies {

void PolicyRegistry::Add(std::string name, std::string description, Factory factory,
                         PolicyTraits traits) {
  for (const Entry& entry : entries_) {
    if (entry.name == name) throw InputError(fmt::format("policy '{}' is registered twice", name));
  }
  entries_.push_back(
      {std::move(name), std::move(description), std::move(factory), std::move(traits)});
}

const PolicyRegistry::Entry& PolicyRegistry::Find(std::string_view name) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw UsageError(UnknownName("policy", name, names));
}

std::unique_ptr<Policy> PolicyRegistry::Make(std::string_view specification) const {
  Specification parsed = ParseSpecification("policy", specification);
  const Entry& entry = Find(parsed.name);
  Params params(fmt::format("policy '{}'", entry.name), std::move(parsed.values));
  std::unique_ptr<Policy> policy = entry.factory(params);
  params.Finish();
  return policy;
}

std::string PolicyRegistry::MemoryPolicy(std::string_view specification) const {
  Specification parsed = ParseSpecification("policy", specification);
  const Entry& entry = Find(parsed.name);
  if (!entry.traits.memory_of) return {};
  Params params(fmt::format("policy '{}'", entry.name), std::move(parsed.values));
  return entry.traits.memory_of(params);
}

std::vector<ParamInfo> PolicyRegistry::Parameters(std::string_view name) const {
  Params params(std::string(name), {});
  Find(name).factory(params);
  return params.declared();
}

}  // namespace spillway::policies
