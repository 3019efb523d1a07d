// Helpers that the fuzz targets share: the only error that a reader may throw, and the place that
// it must name.
//
// A target is one function that runs one input. A broken property aborts through `SPILLWAY_CHECK`,
// and any exception except the documented one ends the process.

#ifndef SPILLWAY_TESTS_FUZZ_PROPERTY_H_
#define SPILLWAY_TESTS_FUZZ_PROPERTY_H_

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "traces/base/error.h"

// The entry point that every target defines and that libFuzzer, or replay_main.cc, calls.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace spillway::fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Removes "N:" with N >= 1 from the front of `text`. Returns false, and changes nothing, if `text`
// does not begin so.
inline bool TakeNumber(std::string_view& text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number == 0 || rest == end || *rest != ':') return false;
  text.remove_prefix(static_cast<size_t>(rest + 1 - text.data()));
  return true;
}

// Returns true for "ORIGIN:LINE:COLUMN: ..", and for "ORIGIN: .." followed by `whole` or by "this
// is ". An error of the second form concerns the file as a whole, or names its real format. An
// empty `whole` allows any text.
inline bool NamesPlace(std::string_view message, std::string_view origin, std::string_view whole) {
  if (!message.starts_with(origin)) return false;
  message.remove_prefix(origin.size());
  if (!message.starts_with(':')) return false;
  message.remove_prefix(1);
  if (message.starts_with(' ')) {
    message.remove_prefix(1);
    return message.starts_with(whole) || message.starts_with("this is ");
  }
  return TakeNumber(message) && TakeNumber(message) && message.starts_with(' ');
}

// Returns true if `run` returns, and false if it throws an `InputError`. Aborts if the error does
// not name its place; see `NamesPlace`.
template <typename Run>
bool Accepts(std::string_view origin, std::string_view whole, const Run& run) {
  try {
    run();
    return true;
  } catch (const InputError& error) {
    SPILLWAY_CHECK(NamesPlace(error.what(), origin, whole));
    return false;
  }
}

// Returns true if `run` returns, and false if it throws an `InputError`. Use it for steps after the
// reader, whose errors need not name a place in the file.
template <typename Run>
bool Runs(const Run& run) {
  try {
    run();
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace spillway::fuzz

#endif  // SPILLWAY_TESTS_FUZZ_PROPERTY_H_
