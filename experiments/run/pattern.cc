#include "experiments/run/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/params.h"

namespace spillway::lab {
namespace {

constexpr uint64_t kMostAlternatives = 1'000'000;
constexpr std::string_view kKeyLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
constexpr uint64_t kMostTexts = uint64_t{1} << 40;

[[noreturn]] void Fail(std::string_view text, const std::string& why) {
  throw UsageError(fmt::format("'{}': {}", text, why));
}

std::optional<int64_t> ParseWhole(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void CheckCount(std::string_view text, uint64_t count) {
  if (count <= kMostAlternatives) return;
  Fail(text, fmt::format("more than {} values in one place", kMostAlternatives));
}

// Adds the numbers of a range, such as "64..256..32" or "1..8", to the values.
void AddRange(std::string_view text, std::string_view range, std::vector<std::string>& values) {
  const size_t dots = range.find("..");
  const size_t more = range.find("..", dots + 2);
  const auto first = ParseWhole(range.substr(0, dots));
  const auto last = ParseWhole(range.substr(dots + 2, more - dots - 2));
  const auto step = more == std::string_view::npos ? 1 : ParseWhole(range.substr(more + 2));
  if (!first || !last || !step || *step < 1 || *last < *first || *first < 0) {
    Fail(text, fmt::format("'{}' is no range: expected FIRST..LAST or FIRST..LAST..STEP of whole "
                           "numbers, such as 64..256..32",
                           range));
  }
  const auto count = static_cast<uint64_t>((*last - *first) / *step) + 1;
  CheckCount(text, values.size() + count);
  for (uint64_t i = 0; i < count; ++i) {
    values.push_back(std::to_string(*first + static_cast<int64_t>(i) * *step));
  }
}

// Returns the position of the brace that closes the one at `open`, or the size of the text if there
// is none.
size_t FindClose(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t at = open; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) return at;
  }
  return text.size();
}

// Returns the values that commas separate in the text.
std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> values;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = at + FindComma(text.substr(at));
    const std::string_view part = text.substr(at, end - at);
    if (!values.empty() && IsParameter(part) && !IsParameter(values.back())) {
      const bool has_parameters = values.back().find('=') != std::string::npos;
      values.back() += fmt::format("{}{}", has_parameters ? ',' : ':', part);
    } else {
      values.emplace_back(part);
    }
    at = end + 1;
  }
  return values;
}

bool IsFile(const std::string& text) {
  std::error_code ignored;
  return text.find_first_of(",{}") != std::string::npos && std::filesystem::exists(text, ignored);
}

std::vector<std::string> ParseAlternatives(std::string_view text, std::string_view inner) {
  std::vector<std::string> values;
  for (const std::string& value : Split(inner)) {
    if (value.empty()) Fail(text, fmt::format("an empty place in {{{}}}", inner));
    if (value.find('{') != std::string_view::npos) {
      const Pattern nested(value);
      CheckCount(text, values.size() + nested.size());
      for (uint64_t i = 0; i < nested.size(); ++i) values.push_back(nested.at(i));
    } else if (value.find("..") != std::string_view::npos) {
      AddRange(text, value, values);
    } else {
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace

bool IsParameter(std::string_view text) {
  const size_t equals = text.find_first_not_of(kKeyLetters);
  return equals != std::string_view::npos && equals > 0 && text[equals] == '=';
}

std::vector<std::string> SplitSpecifications(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  for (const std::string& text : texts) {
    std::vector<std::string> some = IsFile(text) ? std::vector{text} : Split(text);
    if (some.size() > 1 && std::ranges::count(some, "") > 0) {
      throw UsageError(fmt::format("'{}' has an empty place in its list", text));
    }
    std::ranges::move(some, std::back_inserter(values));
  }
  return values;
}

std::vector<std::string> ExpandSpecifications(const std::vector<std::string>& texts) {
  const Patterns patterns(SplitSpecifications(texts));
  CheckCount(fmt::format("{}", fmt::join(texts, " ")), patterns.size());
  std::vector<std::string> values;
  for (uint64_t i = 0; i < patterns.size(); ++i) values.push_back(patterns.at(i));
  return values;
}

Pattern::Pattern(std::string_view text) {
  size_t at = 0;
  while (true) {
    const size_t open = std::min(text.find_first_of("{}", at), text.size());
    between_.emplace_back(text.substr(at, open - at));
    if (open == text.size()) return;
    if (text[open] == '}') Fail(text, "a '}' without '{'");
    const size_t close = FindClose(text, open);
    if (close == text.size()) Fail(text, "a '{' is left open");
    alternatives_.push_back(ParseAlternatives(text, text.substr(open + 1, close - open - 1)));
    size_ *= alternatives_.back().size();
    if (size_ > kMostTexts) Fail(text, "stands for too many texts, more than 2^40");
    at = close + 1;
  }
}

Pattern Pattern::Literal(std::string text) {
  Pattern pattern;
  pattern.between_.push_back(std::move(text));
  return pattern;
}

std::string Pattern::at(uint64_t i) const {
  std::string text = between_.back();
  for (size_t b = alternatives_.size(); b-- > 0;) {
    const std::vector<std::string>& values = alternatives_[b];
    text.insert(0, between_[b] + values[i % values.size()]);
    i /= values.size();
  }
  return text;
}

Patterns::Patterns(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    patterns_.push_back(IsFile(text) ? Pattern::Literal(text) : Pattern(text));
    size_ += patterns_.back().size();
  }
}

std::string Patterns::at(uint64_t i) const {
  size_t p = 0;
  while (i >= patterns_[p].size()) i -= patterns_[p++].size();
  return patterns_[p].at(i);
}

}  // namespace spillway::lab
