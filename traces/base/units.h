// Types for byte counts and durations, and their spelling in files and on command lines.
//
// `Bytes` and `Duration` hold signed 64-bit integers; their arithmetic is exact and never goes
// through floating point. A `Duration` also serves as a point in time, counted from the start of
// the iteration. This header is a leaf: it includes no other header of the project.

#ifndef SPILLWAY_TRACES_BASE_UNITS_H_
#define SPILLWAY_TRACES_BASE_UNITS_H_

#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "traces/base/namespaces.h"

namespace spillway::traces {

// The type of products of bytes and picoseconds, which overflow 64 bits.
__extension__ using Int128 = __int128;

// A number of bytes, or an offset into a region of memory.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count) {}

  static constexpr Bytes KiB(int64_t n) { return Bytes(n << 10); }
  static constexpr Bytes MiB(int64_t n) { return Bytes(n << 20); }
  static constexpr Bytes GiB(int64_t n) { return Bytes(n << 30); }
  // A size that is never exceeded. Its sums with real sizes do not overflow.
  static constexpr Bytes Unlimited() { return Bytes(int64_t{1} << 60); }

  constexpr int64_t count() const { return count_; }
  constexpr double mib() const { return static_cast<double>(count_) / (1 << 20); }
  constexpr double gib() const { return static_cast<double>(count_) / (1 << 30); }

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) { return count_ += other.count_, *this; }
  constexpr Bytes& operator-=(Bytes other) { return count_ -= other.count_, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, int64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(int64_t n, Bytes a) { return a * n; }

 private:
  int64_t count_ = 0;
};

// Returns `size` rounded up to a multiple of `alignment`. REQUIRES: alignment > 0.
constexpr Bytes RoundUp(Bytes size, Bytes alignment) {
  const int64_t a = alignment.count();
  return Bytes((size.count() + a - 1) / a * a);
}

// Returns `size` rounded down to a multiple of `alignment`. REQUIRES: size >= 0, alignment > 0.
constexpr Bytes RoundDown(Bytes size, Bytes alignment) {
  return Bytes(size.count() / alignment.count() * alignment.count());
}

// A length of time in integer picoseconds, at most 106 days.
class Duration {
 public:
  constexpr Duration() = default;

  static constexpr Duration Picoseconds(int64_t n) { return Duration(n); }
  static constexpr Duration Nanoseconds(int64_t n) { return Duration(n * 1'000); }
  static constexpr Duration Microseconds(int64_t n) { return Duration(n * 1'000'000); }
  static constexpr Duration Milliseconds(int64_t n) { return Duration(n * 1'000'000'000); }
  static constexpr Duration Max() { return Duration(std::numeric_limits<int64_t>::max()); }

  constexpr int64_t picoseconds() const { return picoseconds_; }
  constexpr double milliseconds() const { return static_cast<double>(picoseconds_) / 1e9; }
  constexpr double seconds() const { return static_cast<double>(picoseconds_) / 1e12; }

  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration& operator+=(Duration other) {
    return picoseconds_ += other.picoseconds_, *this;
  }
  constexpr Duration& operator-=(Duration other) {
    return picoseconds_ -= other.picoseconds_, *this;
  }
  friend constexpr Duration operator+(Duration a, Duration b) {
    return Duration(a.picoseconds_ + b.picoseconds_);
  }
  friend constexpr Duration operator-(Duration a, Duration b) {
    return Duration(a.picoseconds_ - b.picoseconds_);
  }
  friend constexpr Duration operator*(Duration a, int64_t n) {
    return Duration(a.picoseconds_ * n);
  }

 private:
  constexpr explicit Duration(int64_t picoseconds) : picoseconds_(picoseconds) {}
  int64_t picoseconds_ = 0;
};

// A rate in bytes per second.
struct Bandwidth {
  int64_t bytes_per_second = 0;
  constexpr auto operator<=>(const Bandwidth&) const = default;
};

// Returns the time to transfer `size` at `bandwidth`, rounded up to a picosecond. It is at most
// half of `Duration::Max()`, so that a latency can be added. REQUIRES: bandwidth is positive.
Duration TransferTime(Bytes size, Bandwidth bandwidth);

// Parse quantities in files and options. A text is a number, which may have decimals, and a unit;
// blanks may separate them. The product is rounded to the nearest integer and is at most 10^18.
// Each parser throws an `InputError` that names the text and the units accepted.
//   bytes      B KB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024)
//   duration   ps ns us ms s
//   bandwidth  a byte unit followed by "/s"
//   rate       FLOP/s, with the prefixes M G T P
Bytes ParseBytes(std::string_view text);
Duration ParseDuration(std::string_view text);
Bandwidth ParseBandwidth(std::string_view text);
int64_t ParseFlopRate(std::string_view text);

// Format quantities for people: "11.9 GiB", "3.58 ms". The number has three significant digits, or
// its whole part if that is longer, without trailing zeros.
std::string FormatBytes(Bytes size);
// Formats `size` with as many digits as distinguish it from `beside`, a size in the same sentence:
// neither 49.1 MiB nor 49.2 MiB becomes "49 MiB".
std::string FormatBytes(Bytes size, Bytes beside);
std::string FormatDuration(Duration time);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_UNITS_H_
