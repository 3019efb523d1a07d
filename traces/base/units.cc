#include "traces/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr std::array kByteUnits{
    Unit{"B", 1},           Unit{"KB", 1e3},           Unit{"MB", 1e6},
    Unit{"GB", 1e9},        Unit{"TB", 1e12},          Unit{"KiB", 1024.0},
    Unit{"MiB", 1048576.0}, Unit{"GiB", 1073741824.0}, Unit{"TiB", 1099511627776.0},
};
constexpr std::array kShownByteUnits{
    Unit{"B", 1},
    Unit{"KiB", 1024.0},
    Unit{"MiB", 1048576.0},
    Unit{"GiB", 1073741824.0},
};
constexpr std::array kTimeUnits{
    Unit{"ps", 1}, Unit{"ns", 1e3}, Unit{"us", 1e6}, Unit{"ms", 1e9}, Unit{"s", 1e12},
};
constexpr std::array kFlopUnits{
    Unit{"FLOP/s", 1},     Unit{"MFLOP/s", 1e6},  Unit{"GFLOP/s", 1e9},
    Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15},
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower;
}

// Parses "<number> <unit>". Returns the number times the unit's scale, rounded to an integer.
int64_t ParseQuantity(std::string_view text, std::string_view what, std::span<const Unit> units,
                      std::string_view suffix) {
  const auto fail = [&](std::string_view why) -> InputError {
    std::string names;
    for (const Unit& unit : units) {
      names += fmt::format("{}{}{}", names.empty() ? "" : " ", unit.name, suffix);
    }
    return InputError(
        fmt::format("'{}' is not a {}: {} (a number and one of: {})", text, what, why, names));
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) throw fail("its number is out of range");
  if (error != std::errc() || !std::isfinite(number)) throw fail("it does not start with a number");
  if (std::signbit(number)) throw fail("it is negative");
  std::string_view unit_name(rest, static_cast<size_t>(end - rest));
  while (!unit_name.empty() && unit_name.front() == ' ') unit_name.remove_prefix(1);
  if (unit_name.empty()) throw fail("the unit is missing");
  if (!suffix.empty()) {
    if (!unit_name.ends_with(suffix)) throw fail(fmt::format("unknown unit '{}'", unit_name));
    unit_name.remove_suffix(suffix.size());
  }
  for (const Unit& unit : units) {
    if (unit.name != unit_name) continue;
    const double value = number * unit.scale;
    if (value > 1e18) throw fail("it is too large");
    return std::llround(value);
  }
  std::string why = fmt::format("unknown unit '{}'", unit_name);
  // "gib", "G" and "Gi" are suggested as "GiB": such a text equals a unit's name in another case,
  // or lacks its final "B" or "iB".
  std::string_view before = "; did you mean ";
  for (const Unit& unit : units) {
    const std::string name = Lower(unit.name);
    const std::string given = Lower(unit_name);
    if (name != given && name != given + "b" && name != given + "ib") continue;
    why += fmt::format("{}{}{}{}", before, std::string_view(text.data(), rest), unit.name, suffix);
    before = " or ";
  }
  throw fail(why + (before == " or " ? "?" : ""));
}

// Returns `number` with three significant digits, or its whole part if that is longer, plus `more`
// decimals. Trailing zeros are removed.
std::string FormatNumber(double number, int more = 0) {
  const double magnitude = std::abs(number);
  const int decimals = (magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0) + more;
  std::string text = fmt::format("{:.{}f}", number, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

// Returns the largest unit that is not larger than `count`, or the first unit if `count` is smaller
// than all. REQUIRES: `units` ascend.
const Unit& UnitOf(int64_t count, std::span<const Unit> units) {
  const Unit* unit = &units.front();
  for (const Unit& candidate : units) {
    if (std::abs(static_cast<double>(count)) >= candidate.scale) unit = &candidate;
  }
  return *unit;
}

std::string FormatQuantity(int64_t count, std::span<const Unit> units) {
  const Unit& unit = UnitOf(count, units);
  return fmt::format("{} {}", FormatNumber(static_cast<double>(count) / unit.scale), unit.name);
}

}  // namespace

Duration TransferTime(Bytes size, Bandwidth bandwidth) {
  SPILLWAY_CHECK(bandwidth.bytes_per_second > 0);
  const Int128 rate = bandwidth.bytes_per_second;
  const Int128 picoseconds = (Int128{size.count()} * 1'000'000'000'000 + rate - 1) / rate;
  const Int128 limit = Duration::Max().picoseconds() / 2;
  return Duration::Picoseconds(static_cast<int64_t>(std::min(picoseconds, limit)));
}

Bytes ParseBytes(std::string_view text) {
  return Bytes(ParseQuantity(text, "size", kByteUnits, ""));
}

Duration ParseDuration(std::string_view text) {
  return Duration::Picoseconds(ParseQuantity(text, "duration", kTimeUnits, ""));
}

Bandwidth ParseBandwidth(std::string_view text) {
  return {ParseQuantity(text, "bandwidth", kByteUnits, "/s")};
}

int64_t ParseFlopRate(std::string_view text) { return ParseQuantity(text, "rate", kFlopUnits, ""); }

std::string FormatBytes(Bytes size) { return FormatQuantity(size.count(), kShownByteUnits); }

std::string FormatBytes(Bytes size, Bytes beside) {
  const Unit& unit = UnitOf(std::max(size, beside).count(), kShownByteUnits);
  const auto in_unit = [&](Bytes bytes, int more) {
    return FormatNumber(static_cast<double>(bytes.count()) / unit.scale, more);
  };
  if (size == beside || in_unit(size, 0) != in_unit(beside, 0)) return FormatBytes(size);
  for (int more = 1; more < 10; ++more) {
    if (in_unit(size, more) == in_unit(beside, more)) continue;
    return fmt::format("{} {}", in_unit(size, more), unit.name);
  }
  return fmt::format("{} B", size.count());
}

std::string FormatDuration(Duration time) { return FormatQuantity(time.picoseconds(), kTimeUnits); }

}  // namespace spillway::traces
