#include "policies/registry.h"

#include <fmt/format.h>

#include <utility>

#include "sim/core/error.h"

namespace spillway {
namespace {

Params::Values ParseValues(std::string_view specification, std::string_view text) {
  Params::Values values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw UsageError(fmt::format("policy '{}': '{}' is not key=value", specification, item));
    }
    const std::string key(item.substr(0, equals));
    if (!values.emplace(key, item.substr(equals + 1)).second) {
      throw UsageError(fmt::format("policy '{}': '{}' is given twice", specification, key));
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

}  // namespace

void PolicyRegistry::Add(std::string name, std::string description, Factory factory) {
  for (const Entry& entry : entries_) {
    if (entry.name == name) throw InputError(fmt::format("policy '{}' is registered twice", name));
  }
  entries_.push_back({std::move(name), std::move(description), std::move(factory)});
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
  const size_t colon = std::min(specification.find(':'), specification.size());
  const Entry& entry = Find(specification.substr(0, colon));
  Params params(fmt::format("policy '{}'", entry.name),
                colon == specification.size()
                    ? Params::Values{}
                    : ParseValues(specification, specification.substr(colon + 1)));
  std::unique_ptr<Policy> policy = entry.factory(params);
  params.Finish();
  return policy;
}

std::vector<ParamInfo> PolicyRegistry::Parameters(std::string_view name) const {
  Params params(std::string(name), {});
  Find(name).factory(params);
  return params.declared();
}

}  // namespace spillway
