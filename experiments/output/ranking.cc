#include "experiments/output/ranking.h"

#include <limits>
#include <tuple>

namespace spillway::lab {

std::string Standing::Cell() const {
  if (failed) return "failed";
  if (!missing) return fits;
  return *missing > Bytes() ? "+ " + FormatBytes(*missing) : "no";
}

bool Standing::IsAbove(const Standing& other) const {
  const auto key = [](const Standing& of) {
    return std::tuple(of.failed, of.missing.has_value(), of.missing.value_or(Bytes()),
                      of.score.value_or(std::numeric_limits<double>::infinity()));
  };
  return key(*this) < key(other);
}

}  // namespace spillway::lab
