#include "traces/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

namespace spillway {
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

}  // namespace

std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& valid) {
  std::string message = fmt::format("unknown {} '{}'", what, name);
  const std::string* best = nullptr;
  size_t best_distance = std::max<size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : valid) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) best = &candidate, best_distance = distance;
  }
  if (best != nullptr) message += fmt::format("; did you mean '{}'?", *best);
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

}  // namespace spillway
