#include "experiments/cli/frame/case_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/run/pattern.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"

namespace spillway::cli {

void AddCaseOptions(Command& verb, std::initializer_list<std::string_view> keys, Case& asked) {
  AddCaseOptions(verb, std::span(keys.begin(), keys.size()), asked);
}

void AddCaseOptions(Command& verb, std::span<const std::string_view> keys, Case& asked) {
  for (const std::string_view name : keys) {
    const CaseKey& key = CaseKeyOf(name);
    const bool is_argument = name == "workload";
    const auto set = [&asked, &key](const std::string& text) { key.set(asked, text); };
    Option& option = verb.Setting(is_argument ? key.name : fmt::format("--{}", name), key.initial,
                                  set, key.help);
    if (is_argument) option.Required();
    if (key.kind == CaseKey::Kind::kFlag) {
      option.Type("");
      continue;
    }
    option.NotEmpty(key.empty);
    if (key.values != nullptr) option.Choices(Alternatives(key.values));
    if (key.kind == CaseKey::Kind::kTexts) {
      // A run has all of them. Braces, which stand for alternatives, are left to sweeps.
      option.Verbatim().several = true;
      option.store = [set](const Option::Texts& texts) {
        std::ranges::for_each(SplitSpecifications(texts), set);
      };
    }
  }
}

Bytes ParseSize(std::string_view option, const std::string& text, std::string_view remark) {
  try {
    return ParseBytes(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("{}: {}{}", option, error.what(), remark));
  }
}

}  // namespace spillway::cli
