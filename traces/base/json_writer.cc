#include "traces/base/json_writer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "traces/base/error.h"

namespace spillway::traces {

// Appends the comma, line break and blanks between the last piece and the next one.
void JsonWriter::Separate() {
  if (std::exchange(after_key_, false) || levels_.empty()) return;
  Level& level = levels_.back();
  if (level.has_elements) text_ += ',';
  if (const size_t indent = std::exchange(break_, 0); indent > 0 || level.spread) {
    text_ += '\n';
    text_.append(indent > 0 ? indent : 2 * levels_.size(), ' ');
  } else if (level.has_elements) {
    text_ += ' ';
  }
  level.has_elements = true;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  AppendJsonString(text_, key);
  text_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::Put(std::string_view text) {
  Separate();
  AppendJsonString(text_, text);
  return *this;
}

JsonWriter& JsonWriter::Put(int64_t value) {
  const fmt::format_int text(value);
  return PutJson({text.data(), text.size()});
}

JsonWriter& JsonWriter::Put(double value) {
  Separate();
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::PutJson(std::string_view text) {
  Separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::Begin(char bracket, bool spread) {
  Separate();
  text_ += bracket;
  levels_.push_back({spread});
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  SPILLWAY_CHECK(!levels_.empty() && !after_key_);
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.has_elements && level.spread) {
    text_ += '\n';
    text_.append(2 * levels_.size(), ' ');
  }
  text_ += bracket;
  return *this;
}

std::string JsonWriter::Take() {
  SPILLWAY_CHECK(levels_.empty());
  text_ += '\n';
  return std::move(text_);
}

void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    // Control characters include U+0080 to U+009F, which in UTF-8 begin with 0xc2.
    const bool wide =
        c == '\xc2' && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (wide) c = text[++i];
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (wide || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

}  // namespace spillway::traces
