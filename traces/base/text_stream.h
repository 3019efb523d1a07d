// Reads the text of a file from front to back in pieces of fixed size. The file may be plain, gzip
// or Zstandard.
//
// Meant for files that do not fit in memory; use `ReadFile` for files that do.

#ifndef SPILLWAY_TRACES_BASE_TEXT_STREAM_H_
#define SPILLWAY_TRACES_BASE_TEXT_STREAM_H_

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "traces/base/namespaces.h"

namespace spillway::traces {

class TextStream {
 public:
  // Opens a file. Throws `InputError` with the path and the system's reason.
  explicit TextStream(const std::filesystem::path& path);
  // Reads from `text` instead of a file. `origin` takes the place of the path in messages.
  TextStream(std::string text, std::string origin);
  ~TextStream();

  const std::string& origin() const { return origin_; }

  // Appends the next piece to `text`; returns false at the end. Throws `InputError` if the file
  // cannot be read, is damaged or was cut off.
  bool Read(std::string& text);

 private:
  class Decoder;
  class Gzip;
  class Zstandard;

  std::string origin_;
  std::string given_;
  std::unique_ptr<Decoder> decoder_;  // nullptr: the whole text is in `given_`
};

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_TEXT_STREAM_H_
