#include "sim/core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace spillway {
namespace {

// Levenshtein distance, one row at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
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

void CheckFailed(const char* file, int line, const char* condition) {
  fmt::print(stderr, "{}:{}: internal error, check failed: {}\n", file, line, condition);
  std::abort();
}

}  // namespace spillway
