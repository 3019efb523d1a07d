#include "experiments/cli/frame/exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "traces/base/error.h"

namespace spillway::cli {

void ExportsOption::Add(Command& verb, std::vector<ExportKind> kinds, const Option* other) {
  std::vector<std::string> names;
  for (const ExportKind& kind : kinds) names.push_back(kind.name);
  Option& option = verb.Setting("--export", "", {},
                                fmt::format("Write a file, too: KIND:FILE, repeat for more; the "
                                            "kinds are {}, which help describes",
                                            fmt::join(names, ", ")))
                       .Type("KIND:FILE")
                       .OneEach()
                       .Verbatim();
  option.several = true;
  option.describe = [kinds](const std::string&) {
    std::string text;
    for (const ExportKind& kind : kinds) {
      text += fmt::format("{}{}\n    {}\n", kind.name,
                          kind.only.empty() ? "" : fmt::format(" ({})", fmt::join(kind.only, ", ")),
                          kind.help);
    }
    return text;
  };
  option.choices = names;
  option.store = [this, kinds = std::move(kinds), names, other](const Option::Texts& texts) {
    paths.clear();
    for (const std::string& text : texts) {
      const std::string name = text.substr(0, text.find(':'));
      const auto kind = std::ranges::find(kinds, name, &ExportKind::name);
      if (kind == kinds.end()) {
        throw UsageError(fmt::format("--export: {}; give KIND:FILE, such as {}:FILE",
                                     UnknownName("kind", name, names), names.front()));
      }
      const std::string path = name == text ? "" : text.substr(name.size() + 1);
      const auto [known, is_new] = paths.try_emplace(name, path);
      std::string problem = Option::FileProblem(path);
      if (!is_new) problem = fmt::format("is given twice, as '{}' and '{}'", known->second, path);
      if (problem.empty() && !kind->only.empty()) problem = other->Lacks(kind->only);
      if (!problem.empty()) throw UsageError(fmt::format("--export {}: {}", name, problem));
    }
  };
}

Export ExportsOption::File(const std::string& kind,
                           std::function<std::string(const Manifest&)> contents) const {
  const auto found = paths.find(kind);
  return {"--export " + kind, found == paths.end() ? "" : found->second, std::move(contents)};
}

}  // namespace spillway::cli
