#include "traces/base/json_elements.h"

#include <fmt/format.h>

#include <array>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/units.h"

namespace spillway::traces {
namespace {

constexpr size_t kLargestElement = size_t{256} << 20;
constexpr size_t kLargestHeader = size_t{16} << 20;
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The characters that the scanner must look at, outside and inside of strings.
using Stops = std::array<bool, 256>;
constexpr Stops StopsAt(std::string_view characters) {
  Stops stops{};
  for (const char c : characters) stops[static_cast<unsigned char>(c)] = true;
  return stops;
}
constexpr Stops kStructure = StopsAt("\"{}[]\n");
constexpr Stops kInString = StopsAt("\"\\\n");

}  // namespace

JsonElements::JsonElements(TextStream& stream, std::string_view array, std::string_view first_key,
                           std::string_view document)
    : stream_(stream) {
  set_first_key(first_key);
  FindArray(array, document);
}

void JsonElements::Fail(std::string_view message) const {
  throw InputError(fmt::format("{}: byte {}: {}", stream_.origin(), element_, message));
}

bool JsonElements::More() {
  text_.erase(0, begin_);
  offset_ += begin_;
  begin_ = 0;
  return stream_.Read(text_);
}

void JsonElements::FindArray(std::string_view array, std::string_view document) {
  const std::string key = fmt::format("\"{}\"", array);
  const auto fail = [&](std::string_view what) {
    throw InputError(fmt::format("{}: {}, expected {} with an array '{}'", stream_.origin(), what,
                                 document, array));
  };
  stream_.Read(text_);
  if (text_.starts_with(kByteOrderMark)) {
    offset_ = kByteOrderMark.size();
    text_.erase(0, offset_);
  }
  size_t at = 0, string_start = 0;
  int depth = 0;
  bool in_string = false;
  while (true) {
    if (at >= text_.size()) {
      if (text_.size() > kLargestHeader) fail("no such array in the first 16 MiB");
      if (stream_.Read(text_)) continue;
      fail(text_.empty() ? "the file is empty" : "there is no such array");
    }
    const char c = text_[at];
    if (depth == 0 && c != '{' && kBlanks.find(c) == kBlanks.npos) {
      PlainText(text_, stream_.origin());  // may know what it is
      fail("this is no JSON object");
    }
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') {
        in_string = false;
        if (depth == 1 &&
            std::string_view(text_).substr(string_start, at + 1 - string_start) == key) {
          size_t next = at + 1;
          const auto skip = [&] {
            while ((next = text_.find_first_not_of(kBlanks, next)) == text_.npos) {
              next = text_.size();
              if (!stream_.Read(text_)) fail("the text ends there");
            }
          };
          skip();
          if (text_[next] == ':') {
            ++next;
            skip();
            if (text_[next] != '[') fail("its value is no array");
            const size_t end = text_.find_last_not_of(", \t\r\n", string_start - 1);
            header_ = text_.substr(0, end + 1) + "}";
            begin_ = next + 1;
            return;
          }
        }
      }
    } else if (c == '"') {
      in_string = true;
      string_start = at;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    ++at;
  }
}

// Returns true iff an object with the first key begins on its own line after the line break at
// `at`.
bool JsonElements::BeginsElement(size_t at) const {
  const size_t brace = text_.find_first_not_of(kBlanks, at);
  if (brace == text_.npos || text_[brace] != '{') return false;
  const size_t key = text_.find_first_not_of(kBlanks, brace + 1);
  return key != text_.npos && text_.compare(key, first_key_.size(), first_key_) == 0;
}

std::optional<std::string_view> JsonElements::Next() {
  if (truncated_ || !FindObject()) return std::nullopt;
  const std::optional<size_t> end = FindEnd();
  if (!end) return std::nullopt;
  const size_t start = begin_;
  begin_ = *end;
  text_.reserve(*end + kPadding);
  return std::string_view(text_).substr(start, *end - start);
}

bool JsonElements::FindObject() {
  size_t at = begin_;
  while (true) {
    at = text_.find_first_not_of(", \t\r\n", at);
    if (at == text_.npos) {
      begin_ = at = text_.size();
      if (!More()) {
        truncated_ = true;
        return false;
      }
      at = begin_;
      continue;
    }
    if (text_[at] == ']') return false;
    if (text_[at] == '{') break;
    // Skips the rest of an object that was cut off, up to the end of its line.
    while ((at = text_.find('\n', at)) == text_.npos) {
      begin_ = text_.size();
      if (!More()) {
        truncated_ = true;
        return false;
      }
      at = begin_;
    }
  }
  begin_ = at;
  element_ = offset_ + at;
  return true;
}

std::optional<size_t> JsonElements::FindEnd() {
  constexpr size_t kLookahead = 256;  // for `BeginsElement`
  size_t at = begin_;
  int depth = 0;
  bool in_string = false;
  while (true) {
    if (at + kLookahead >= text_.size()) {
      if (text_.size() - begin_ > kLargestElement) Fail("an object of more than 256 MiB");
      at -= begin_;
      const bool more = More();
      if (!more && at >= text_.size()) {  // the text ends within the object
        ++cut_off_;
        truncated_ = true;
        return std::nullopt;
      }
    }
    const Stops& stops = in_string ? kInString : kStructure;
    while (at < text_.size() && !stops[static_cast<unsigned char>(text_[at])]) ++at;
    if (at >= text_.size()) continue;
    const char c = text_[at];
    if (c == '\n') {  // a string has no line break, and an element is never nested in another
      in_string = false;
      if (BeginsElement(at)) {
        ++cut_off_;
        depth = 0;
        begin_ = at = text_.find('{', at);
        element_ = offset_ + at;
        continue;
      }
    } else if (c == '\\') {
      ++at;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return at + 1;
    }
    ++at;
  }
}

}  // namespace spillway::traces
