// Writes a JSON document piece by piece, in the layout that all of the program's documents share.
//
// Keys come out in the order given, and nothing depends on the locale, so the same calls give the
// same bytes. Containers down to a chosen depth are spread over lines; deeper ones stay on one
// line.

#ifndef SPILLWAY_TRACES_BASE_JSON_WRITER_H_
#define SPILLWAY_TRACES_BASE_JSON_WRITER_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/units.h"

namespace spillway::traces {

class JsonWriter {
 public:
  // Containers nested deeper than `spread` are written on one line.
  explicit JsonWriter(size_t spread) : spread_(spread) {}

  // Writes a key. Inside an object, each value or container follows its key.
  JsonWriter& Key(std::string_view key);

  JsonWriter& Put(std::string_view text);
  JsonWriter& Put(const char* text) { return Put(std::string_view(text)); }
  JsonWriter& Put(const std::string& text) { return Put(std::string_view(text)); }
  JsonWriter& Put(bool value) { return PutJson(value ? "true" : "false"); }
  JsonWriter& Put(int64_t value);
  JsonWriter& Put(std::integral auto value) { return Put(static_cast<int64_t>(value)); }
  JsonWriter& Put(double value);  // the shortest decimal that reads back as `value`
  JsonWriter& Put(Bytes size) { return Put(size.count()); }
  JsonWriter& Put(std::nullopt_t) { return PutJson("null"); }
  template <typename T>
  JsonWriter& Put(const std::optional<T>& value) {
    return value ? Put(*value) : Put(std::nullopt);
  }
  // Writes a value that is already JSON: a decimal that a `double` cannot hold, or a piece of
  // another document.
  JsonWriter& PutJson(std::string_view text);

  template <typename T>
  JsonWriter& Put(std::string_view key, const T& value) {
    return Key(key).Put(value);
  }

  JsonWriter& BeginObject() { return Begin('{', levels_.size() < spread_); }
  JsonWriter& BeginObjectOnOneLine() { return Begin('{', false); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray() { return Begin('[', levels_.size() < spread_); }
  JsonWriter& EndArray() { return End(']'); }

  // Starts the next element on a new line with `indent` blanks, even if its container is on one
  // line.
  JsonWriter& Break(size_t indent) {
    break_ = indent;
    return *this;
  }

  // Returns the document, which ends in a newline. REQUIRES: every container has been ended.
  std::string Take();

 private:
  struct Level {
    bool spread;
    bool has_elements = false;
  };

  JsonWriter& Begin(char bracket, bool spread);
  JsonWriter& End(char bracket);
  void Separate();

  size_t spread_;
  std::string text_;
  std::vector<Level> levels_;  // the containers that are open, outermost first
  bool after_key_ = false;
  size_t break_ = 0;  // blanks before the next element on its new line; 0: no new line
};

// Appends `text` as a JSON string with its quotes. Escapes control characters; copies other bytes
// outside ASCII unchanged.
void AppendJsonString(std::string& out, std::string_view text);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_JSON_WRITER_H_
