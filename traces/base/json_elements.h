// The objects in one array of a JSON document, one after the other, in bounded memory.
//
// For what profilers write: gigabytes, nearly all of it one array of small objects under a key of
// the root, and at times broken. An object that was cut off ends where the next one begins on a
// line of its own; a comma that lacks is not missed.

#ifndef SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_
#define SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "traces/base/text_stream.h"

namespace spillway {

class JsonElements {
 public:
  static constexpr size_t kPadding = 64;  // as much as the parser of an object may need

  // The array under `array`, whose objects begin with `first_key`. `stream` outlives this. Throws
  // `InputError` if the document is no object or has no such array.
  JsonElements(TextStream& stream, std::string_view array, std::string_view first_key);

  // The root object's text before the array, closed: `{"schema": "1.1"}`.
  const std::string& header() const { return header_; }

  // The next object; nullopt at the end of the array. Its text stays until the next call, and has
  // `kPadding` bytes behind it that may be read. Throws `InputError` with the place if the text
  // ends within the array, or an object is larger than 256 MiB.
  std::optional<std::string_view> Next();

  // Objects so far that were cut off.
  int64_t cut_off() const { return cut_off_; }
  // Whether the document ended before its array did.
  bool truncated() const { return truncated_; }

  // Throws `InputError` "path: byte OFFSET: message" at the last object.
  [[noreturn]] void Fail(std::string_view message) const;

 private:
  // Reads on. False at the end of the document. Moves what has not been taken to the front.
  bool More();
  void FindArray(std::string_view array);
  bool BeginsElement(size_t at) const;

  TextStream& stream_;
  const std::string first_key_;  // with its quotes
  std::string header_;
  std::string text_;
  size_t begin_ = 0;      // of what has not been taken
  uint64_t offset_ = 0;   // of text_[0]
  uint64_t element_ = 0;  // offset of the last object
  int64_t cut_off_ = 0;
  bool truncated_ = false;
};

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_
