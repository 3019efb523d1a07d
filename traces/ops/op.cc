#include "traces/ops/op.h"

#include <fmt/format.h>

#include <cmath>

#include "traces/base/error.h"

namespace spillway::traces {

int64_t Op::flops() const {
  int64_t total = 0;
  for (const Slot& slot : slots) total += slot.flops;
  return total;
}

Bytes Op::traffic() const {
  Bytes total;
  for (const Slot& slot : slots) total += slot.traffic;
  return total;
}

std::optional<double> Op::FindAttribute(std::string_view attribute) const {
  for (const Attribute& entry : attributes) {
    if (entry.name == attribute) return entry.value;
  }
  return std::nullopt;
}

double Op::NumberAttribute(std::string_view attribute) const {
  const std::optional<double> value = FindAttribute(attribute);
  if (!value) {
    throw InputError(
        fmt::format("op '{}' ({}) lacks the attribute '{}'", name, Name(type), attribute));
  }
  return *value;
}

int64_t Op::IntAttribute(std::string_view attribute) const {
  constexpr double kMaxExactInteger = 9007199254740992.0;  // 2^53
  const double value = NumberAttribute(attribute);
  if (std::abs(value) > kMaxExactInteger || std::trunc(value) != value) {
    throw InputError(fmt::format("op '{}' ({}): the attribute '{}' is {}, expected an integer",
                                 name, Name(type), attribute, value));
  }
  return static_cast<int64_t>(value);
}

int64_t Op::IntAttribute(std::string_view attribute, int64_t least, int64_t most) const {
  const int64_t value = IntAttribute(attribute);
  if (value < least || value > most) {
    throw InputError(fmt::format("op '{}' ({}): the attribute '{}' is {}, expected {} to {}", name,
                                 Name(type), attribute, value, least, most));
  }
  return value;
}

bool Op::Flag(std::string_view attribute) const {
  return FindAttribute(attribute).value_or(0) != 0;
}

bool Op::Accumulates(size_t output) const {
  const auto mask = static_cast<uint64_t>(FindAttribute("accumulate").value_or(0));
  return output < 64 && ((mask >> output) & 1) != 0;
}

}  // namespace spillway::traces
