#include "sim/core/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

#include "sim/core/error.h"

namespace spillway {
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
constexpr std::array kTimeUnits{
    Unit{"ps", 1}, Unit{"ns", 1e3}, Unit{"us", 1e6}, Unit{"ms", 1e9}, Unit{"s", 1e12},
};
constexpr std::array kFlopUnits{
    Unit{"FLOP/s", 1},     Unit{"MFLOP/s", 1e6},  Unit{"GFLOP/s", 1e9},
    Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15},
};

// Parses "<number> <unit>" and returns the number times the unit's scale, rounded to an integer.
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
  if (error != std::errc() || !std::isfinite(number)) throw fail("no number at its start");
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
  throw fail(fmt::format("unknown unit '{}'", unit_name));
}

}  // namespace

Duration TransferTime(Bytes size, Bandwidth bandwidth) {
  SPILLWAY_CHECK(bandwidth.bytes_per_second > 0);
  const auto rate = static_cast<Int128>(bandwidth.bytes_per_second);
  const Int128 picoseconds =
      (static_cast<Int128>(size.count()) * 1'000'000'000'000 + rate - 1) / rate;
  return Duration::Picoseconds(static_cast<int64_t>(picoseconds));
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

std::string FormatBytes(Bytes size) {
  const double count = static_cast<double>(size.count());
  if (std::abs(count) < 1024) return fmt::format("{} B", size.count());
  if (std::abs(count) < 1048576.0) return fmt::format("{:.4g} KiB", count / 1024);
  if (std::abs(count) < 1073741824.0) return fmt::format("{:.4g} MiB", size.mib());
  return fmt::format("{:.4g} GiB", size.gib());
}

std::string FormatDuration(Duration time) {
  const double count = static_cast<double>(time.picoseconds());
  const double magnitude = std::abs(count);
  if (magnitude < 1e3) return fmt::format("{} ps", time.picoseconds());
  if (magnitude < 1e6) return fmt::format("{:.3g} ns", count / 1e3);
  if (magnitude < 1e9) return fmt::format("{:.3g} us", count / 1e6);
  if (magnitude < 1e12) return fmt::format("{:.4g} ms", count / 1e9);
  return fmt::format("{:.4g} s", count / 1e12);
}

}  // namespace spillway
