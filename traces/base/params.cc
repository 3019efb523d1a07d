#include "traces/base/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "traces/base/error.h"

namespace spillway::traces {

namespace {

// Spells a size as on the command line: the exact number, in the largest unit that divides it.
std::string Spell(Bytes size) {
  if (size == Bytes::Unlimited()) return "unlimited";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  int64_t count = size.count();
  size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && count != 0 && count % 1024 == 0; ++unit) count /= 1024;
  return fmt::format("{}{}", count, kUnits[unit]);
}

}  // namespace

const std::string* Params::Declare(ParamInfo info) {
  const auto found = values_.find(info.name);
  declared_.push_back(std::move(info));
  return found == values_.end() ? nullptr : &found->second;
}

std::string Params::Choice(const std::string& name, const std::string& initial,
                           const std::vector<std::string>& valid, const std::string& help) {
  const std::string* text =
      Declare({name, fmt::format("{}", fmt::join(valid, "|")), initial, help});
  if (text == nullptr) return initial;
  if (std::find(valid.begin(), valid.end(), *text) == valid.end()) {
    throw UsageError(fmt::format("{}: {}", owner_,
                                 UnknownName(fmt::format("value of '{}':", name), *text, valid)));
  }
  return *text;
}

int64_t Params::Integer(const std::string& name, int64_t initial, int64_t least, int64_t greatest,
                        const std::string& help) {
  const std::string* text = Declare({name, "integer", std::to_string(initial), help});
  if (text == nullptr) return initial;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least ||
      value > greatest) {
    throw UsageError(fmt::format("{}: {}='{}' is not a whole number from {} to {}", owner_, name,
                                 *text, least, greatest));
  }
  return value;
}

bool Params::Flag(const std::string& name, bool initial, const std::string& help) {
  return Choice(name, initial ? "true" : "false", {"true", "false"}, help) == "true";
}

Bytes Params::Size(const std::string& name, Bytes initial, const std::string& help) {
  const std::string* text = Declare({name, "size", Spell(initial), help});
  if (text == nullptr) return initial;
  if (*text == "unlimited" && initial == Bytes::Unlimited()) return initial;
  try {
    return ParseBytes(*text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("{}: {}: {}", owner_, name, error.what()));
  }
}

double Params::Share(const std::string& name, double initial, const std::string& help) {
  const std::string* text = Declare({name, "share", fmt::format("{}", initial), help});
  if (text == nullptr) return initial;
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const bool whole = error == std::errc() && end == text->data() + text->size();
  if (!whole || !(value >= 0 && value <= 1)) {
    throw UsageError(fmt::format("{}: {}='{}' is not a share from 0 to 1", owner_, name, *text));
  }
  return value;
}

std::string Params::Text(const std::string& name, const std::string& type,
                         const std::string& initial, const std::string& help) {
  const std::string* text = Declare({name, type, initial, help});
  return text == nullptr ? initial : *text;
}

void Params::Finish() const {
  std::vector<std::string> names;
  for (const ParamInfo& info : declared_) names.push_back(info.name);
  for (const auto& [name, value] : values_) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (names.empty()) {
      throw UsageError(fmt::format("{} has no parameters, '{}' was given", owner_, name));
    }
    throw UsageError(fmt::format("{}: {}", owner_, UnknownName("parameter", name, names)));
  }
}

size_t FindComma(std::string_view text) {
  constexpr std::string_view kOpening = "[({", kClosing = "])}";
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (kOpening.find(text[at]) != std::string_view::npos) ++depth;
    if (kClosing.find(text[at]) != std::string_view::npos && depth > 0) --depth;
    if (text[at] == ',' && depth == 0) return at;
  }
  return text.size();
}

Specification ParseSpecification(std::string_view kind, std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  Specification specification{std::string(text.substr(0, colon)), {}};
  std::string_view rest = text.substr(std::min(colon + 1, text.size()));
  while (!rest.empty()) {
    const size_t comma = FindComma(rest);
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (std::count(item.begin(), item.end(), '[') != std::count(item.begin(), item.end(), ']') ||
        std::count(item.begin(), item.end(), '"') % 2 != 0) {
      throw UsageError(
          fmt::format("{} '{}': a bracket or quote of '{}' is left open", kind, text, item));
    }
    if (equals == std::string_view::npos || equals == 0) {
      throw UsageError(fmt::format("{} '{}': '{}' is not key=value", kind, text, item));
    }
    const std::string key(item.substr(0, equals));
    if (!specification.values.emplace(key, item.substr(equals + 1)).second) {
      throw UsageError(fmt::format("{} '{}': '{}' is given twice", kind, text, key));
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return specification;
}

}  // namespace spillway::traces
