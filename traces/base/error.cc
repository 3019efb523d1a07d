#include "traces/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

namespace spillway::traces {
namespace {

// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn one
// word into the other. Keeps the last three rows of the table: row[j] compares the letters of `a`
// read so far with the first j letters of `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, previous, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(previous, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, row[j - 1] + 1, previous[j] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row.back();
}

// Returns the words of a name: "--drain-seed" has the words "drain" and "seed".
std::vector<std::string_view> Words(std::string_view name) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = name.find_first_not_of("-_", at)) != std::string_view::npos;) {
    words.push_back(name.substr(at, name.find_first_of("-_", at) - at));
    at += words.back().size();
  }
  return words;
}

// Returns the name with its words in alphabetical order.
std::string WithSortedWords(std::string_view name) {
  std::vector<std::string_view> words = Words(name);
  std::sort(words.begin(), words.end());
  return fmt::format("{}", fmt::join(words, "-"));
}

// Returns the number of letters in which words of `name` begin as words of `candidate` do. A word
// counts if one of the two is the beginning of the other and has three letters or more.
size_t CommonLetters(std::string_view name, std::string_view candidate) {
  size_t common = 0;
  for (const std::string_view word : Words(name)) {
    for (const std::string_view other : Words(candidate)) {
      const size_t letters = std::min(word.size(), other.size());
      if (letters >= 3 && word.substr(0, letters) == other.substr(0, letters)) common += letters;
    }
  }
  return common;
}

// Returns the valid name that `name` is most likely meant to be, or nullptr if none is similar: the
// one at the smallest edit distance, in which words may change places, or otherwise the one that
// shares most letters of whole words, and of several the shortest.
const std::string* MostSimilar(std::string_view name, const std::vector<std::string>& valid) {
  const std::string *nearest = nullptr, *related = nullptr;
  size_t least = std::max<size_t>(1, name.size() / 3) + 1, most = 0;
  for (const std::string& candidate : valid) {
    const size_t distance =
        std::min(EditDistance(name, candidate),
                 EditDistance(WithSortedWords(name), WithSortedWords(candidate)) + 1);
    if (distance < least) nearest = &candidate, least = distance;
    const size_t common = CommonLetters(name, candidate);
    const bool shorter = related != nullptr && candidate.size() < related->size();
    if (common > most || (common == most && shorter)) related = &candidate, most = common;
  }
  return nearest != nullptr ? nearest : related;
}

}  // namespace

std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& valid) {
  std::string message = fmt::format("unknown {} '{}'", what, name);
  if (const std::string* similar = MostSimilar(name, valid)) {
    message += fmt::format("; did you mean '{}'?", *similar);
  }
  if (valid.empty()) return message + " (there are none)";
  return message + fmt::format(" (valid: {})", fmt::join(valid, ", "));
}

std::string Printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool line_end = text[i] == '\n' || text.substr(i).starts_with("\r\n");
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too. In UTF-8 they begin with 0xc2.
    const bool wide =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if ((byte < 0x20 && !line_end && byte != '\t') || byte == 0x7f || wide) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}",
                     wide ? static_cast<unsigned char>(text[++i]) : byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

void CheckFailed(const char* file, int line, const char* condition) {
  fmt::print(stderr, "{}:{}: internal error, check failed: {}\n", file, line, condition);
  std::abort();
}

}  // namespace spillway::traces
