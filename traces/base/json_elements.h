// Reads the objects in one array of a JSON document, one after the other, in bounded memory.
//
// Made for the files of profilers: gigabytes of text that is mostly one array of small objects
// under a key of the root, and sometimes broken. An object that was cut off ends where the next one
// begins on its own line. A missing comma between objects is tolerated.

#ifndef SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_
#define SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "traces/base/text_stream.h"

namespace spillway::traces {

class JsonElements {
 public:
  static constexpr size_t kPadding = 64;  // as much as the parser of an object may need

  // The array under `array`, whose objects begin with `first_key`. `stream` outlives this. Skips a
  // byte order mark. Throws `InputError` if the document is no object or has no such array, and
  // names its kind if `PlainText` knows it. `document` says in these errors what was expected.
  JsonElements(TextStream& stream, std::string_view array, std::string_view first_key,
               std::string_view document = "a JSON object");

  // Returns the text of the root object before the array, with a closing brace: `{"schema":
  // "1.1"}`.
  const std::string& header() const { return header_; }

  // Sets the key that objects begin with, if the header decides it. Call it before `Next`.
  void set_first_key(std::string_view key) { first_key_ = '"' + std::string(key) + '"'; }

  // The next object; nullopt at the end of the array. Its text stays until the next call, and has
  // `kPadding` bytes behind it that may be read. Throws `InputError` with the place if the text
  // ends within the array, or an object is larger than 256 MiB.
  std::optional<std::string_view> Next();

  // Returns the number of objects so far that were cut off.
  int64_t cut_off() const { return cut_off_; }
  // Returns true iff the document ended before its array did.
  bool truncated() const { return truncated_; }

  // Throws `InputError` with the message "path: byte OFFSET: message", where OFFSET is the start of
  // the last object.
  [[noreturn]] void Fail(std::string_view message) const;

 private:
  // Moves the text from `begin_` on to the front and appends the next piece. Returns false at the
  // end of the document.
  bool More();
  void FindArray(std::string_view array, std::string_view document);
  bool BeginsElement(size_t at) const;
  // Moves `begin_` to the next object. Returns false at the end of the array or of the document.
  bool FindObject();
  // Returns the end of the object at `begin_`, or nullopt if the document ends within the object.
  // If the object is cut off, moves `begin_` to the next one and returns its end.
  std::optional<size_t> FindEnd();

  TextStream& stream_;
  std::string first_key_;  // with its quotes
  std::string header_;
  std::string text_;
  size_t begin_ = 0;      // the first byte of `text_` that no element has used
  uint64_t offset_ = 0;   // offset of text_[0] in the document
  uint64_t element_ = 0;  // offset of the last object in the document
  int64_t cut_off_ = 0;
  bool truncated_ = false;
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_JSON_ELEMENTS_H_
