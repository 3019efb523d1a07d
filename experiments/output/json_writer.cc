#include "experiments/output/json_writer.h"

#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"

namespace spillway {

// Puts what stands between the last piece and the next one.
void JsonWriter::Separate() {
  if (std::exchange(after_key_, false) || has_elements_.empty()) return;
  if (has_elements_.back()) text_ += ',';
  if (has_elements_.size() <= spread_) {
    text_ += '\n';
    text_.append(2 * has_elements_.size(), ' ');
  } else if (has_elements_.back()) {
    text_ += ' ';
  }
  has_elements_.back() = true;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  AppendJsonString(text_, key);
  text_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::Put(const Value& value) { return PutNumber(FormatJsonValue(value)); }

JsonWriter& JsonWriter::PutNumber(std::string_view text) {
  Separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::PutRow(const Row& row) {
  BeginObject();
  for (const Column& column : row) Put(column.name, column.value);
  return EndObject();
}

JsonWriter& JsonWriter::Begin(char bracket) {
  Separate();
  text_ += bracket;
  has_elements_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  SPILLWAY_CHECK(!has_elements_.empty() && !after_key_);
  if (has_elements_.back() && has_elements_.size() <= spread_) {
    text_ += '\n';
    text_.append(2 * (has_elements_.size() - 1), ' ');
  }
  has_elements_.pop_back();
  text_ += bracket;
  return *this;
}

std::string JsonWriter::Take() {
  SPILLWAY_CHECK(has_elements_.empty());
  return std::move(text_) + "\n";
}

}  // namespace spillway
