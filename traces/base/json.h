// Reads JSON documents, with errors that name the place, and makes excerpts of JSON for messages.
//
// Only the file formats include this header, which exposes simdjson. Documents are read on demand,
// field by field, into the caller's types, without a tree in between. The caller decides how deep
// reading goes, never the document. Everything in a document must be expected. An unknown, repeated
// or missing key, a wrong type and a number out of range all end in an `InputError` of the form
//   path:line:column: tensors[12].size: expected an integer from 0 to 9, got "twelve"

#ifndef SPILLWAY_TRACES_BASE_JSON_H_
#define SPILLWAY_TRACES_BASE_JSON_H_

#include <simdjson.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "traces/base/error.h"

namespace spillway {

// One key of an object and the function that reads its value.
template <typename Read>
struct JsonField {
  std::string_view key;  // a literal, which outlives the document
  bool required;
  Read read;  // void(simdjson::ondemand::value)
};

template <typename Read>
JsonField<Read> Required(std::string_view key, Read read) {
  return {key, true, std::move(read)};
}

template <typename Read>
JsonField<Read> Optional(std::string_view key, Read read) {
  return {key, false, std::move(read)};
}

// A document being read. Call `ReadHeader` first, then `ReadRoot`, then `ReadFromRoot` for the keys
// that `ReadRoot` skipped. Each value is read once. A `string_view` into the document lives as long
// as the document.
class JsonDocument {
 public:
  using Value = simdjson::ondemand::value;

  // A place in the document, kept for a later error message.
  struct Place {
    size_t offset = 0;
    std::string element;
  };

  // Copies `text`. `origin` takes the place of the path in messages.
  JsonDocument(std::string_view text, std::string origin);
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // Returns the root object's "version". Throws `InputError` unless it is from `oldest` to `newest`
  // and the root's "format" is `format`. Both keys may be anywhere in the root object.
  int64_t ReadHeader(std::string_view format, int64_t newest, int64_t oldest);
  int64_t ReadHeader(std::string_view format, int64_t version) {
    return ReadHeader(format, version, version);
  }

  // Reads the root object and checks that nothing follows it.
  template <typename... Reads>
  void ReadRoot(const JsonField<Reads>&... fields) {
    ReadFields(Root(), fields...);
    CheckEnd();
    document_.rewind();
  }

  // Calls `read(key, value)` for each field of the root object and checks that nothing follows it.
  template <typename Read>
  void ReadRootMap(const Read& read) {
    ReadFieldsAs(Root(), read);
    CheckEnd();
    document_.rewind();
  }

  // Reads the value of one key of the root object. Throws `InputError` if the key is missing. Use
  // it for a value that can only be read after another key's value, whatever their order.
  template <typename Read>
  void ReadFromRoot(std::string_view key, const Read& read) {
    const Value value = Find(key);
    Enter(key, 0, Offset(value));
    read(value);
    Leave();
  }

  template <typename... Reads>
  void ReadObject(Value value, const JsonField<Reads>&... fields) {
    simdjson::ondemand::object object;
    if (const auto error = value.get_object().get(object)) FailValue(error, "an object");
    ReadFields(object, fields...);
  }

  // Calls `read(key, value)` for each field of an object with arbitrary keys.
  template <typename Read>
  void ReadMap(Value value, const Read& read) {
    simdjson::ondemand::object object;
    if (const auto error = value.get_object().get(object)) FailValue(error, "an object");
    ReadFieldsAs(object, read);
  }

  // Calls `read(element)` for each element.
  template <typename Read>
  void ReadArray(Value value, const Read& read) {
    simdjson::ondemand::array array;
    if (const auto error = value.get_array().get(array)) FailValue(error, "an array");
    size_t index = 0;
    for (auto result : array) {
      Value element;
      Check(std::move(result).get(element));
      Enter({}, index++, Offset(element));
      read(element);
      Leave();
    }
  }

  std::string_view ReadString(Value value);
  // Returns nullopt for null.
  std::optional<std::string_view> ReadStringOrNull(Value value);
  bool ReadBool(Value value);
  double ReadNumber(Value value);  // finite
  // Returns an integer without fraction or exponent in [min, max].
  int64_t ReadInteger(Value value, int64_t min, int64_t max);

  // Returns the place of the value being read now.
  Place Here() const;

  // Throws an `InputError` at the value being read now, or at `place`.
  [[noreturn]] void Fail(std::string_view what) const;
  [[noreturn]] void Fail(const Place& place, std::string_view what) const;

 private:
  struct Step {
    std::string_view key;  // of an object's field; null for an element of an array
    size_t index = 0;      // in the array
    size_t offset = 0;
  };

  template <typename Read>
  void ReadFieldsAs(simdjson::ondemand::object object, const Read& read) {
    for (auto result : object) {
      simdjson::ondemand::field field;
      Check(std::move(result).get(field));
      const std::string_view key = Key(field);
      Enter(key, 0, Offset(field.value()));
      read(key, field.value());
      Leave();
    }
  }

  template <typename... Reads>
  void ReadFields(simdjson::ondemand::object object, const JsonField<Reads>&... fields) {
    static_assert(sizeof...(Reads) <= 32);
    uint32_t seen = 0;
    for (auto result : object) {
      simdjson::ondemand::field field;
      Check(std::move(result).get(field));
      const char* const start = field.key().raw() - 1;  // its quote
      const std::string_view key = Key(field);
      uint32_t bit = 1;
      // Keys mostly come in the order of `fields`. A field that was read already is skipped without
      // comparing its key.
      const auto take = [&](const auto& candidate) {
        if ((seen & bit) != 0 || candidate.key != key) return bit <<= 1, false;
        seen |= bit;
        Enter(candidate.key, 0, Offset(field.value()));
        candidate.read(field.value());
        Leave();
        return true;
      };
      if (!(take(fields) || ...)) {
        FailKey(key, static_cast<size_t>(start - text_.data()), Offset(field.value()),
                std::array<std::string_view, sizeof...(fields)>{fields.key...});
      }
    }
    uint32_t bit = 1;
    const auto check = [&](const auto& field) {
      if (field.required && (seen & bit) == 0) FailMissing(field.key);
      bit <<= 1;
    };
    (check(fields), ...);
  }

  // Returns the key of a field. The key points into the text unless it has escapes.
  std::string_view Key(simdjson::ondemand::field& field) {
    const char* const start = field.key().raw();
    const char* end = start;
    while (*end != '"' && *end != '\\') ++end;
    if (*end == '"') return {start, end};
    std::string_view key;
    Check(field.unescaped_key().get(key));
    return unescaped_.emplace_back(key);
  }

  void Enter(std::string_view key, size_t index, size_t offset) {
    SPILLWAY_CHECK(depth_ + 1 < steps_.size());
    steps_[++depth_] = {key, index, offset};
  }
  void Leave() { --depth_; }
  void Check(simdjson::error_code error) {
    if (error != simdjson::SUCCESS) [[unlikely]]
      FailSyntax(error);
  }
  size_t Offset(Value value) const {
    return static_cast<size_t>(value.raw_json_token().data() - text_.data());
  }

  simdjson::ondemand::object Root();
  // `if_missing` may throw a more specific error if the document has no such key.
  Value Find(std::string_view key, const std::function<void()>& if_missing = nullptr);
  void CheckEnd();
  [[noreturn]] void FailSyntax(simdjson::error_code error);
  [[noreturn]] void FailValue(simdjson::error_code error, std::string_view expected) const;
  [[noreturn]] void FailKey(std::string_view key, size_t offset, size_t value,
                            std::span<const std::string_view> valid);
  [[noreturn]] void FailMissing(std::string_view key) const;

  std::string origin_;
  simdjson::padded_string text_;
  simdjson::ondemand::parser parser_;
  simdjson::ondemand::document document_;
  // The path from the root (step 0) to the value being read (step `depth_`).
  std::array<Step, 16> steps_;
  size_t depth_ = 0;
  std::deque<std::string> unescaped_;  // strings that had escapes, decoded
};

// A reader for `ReadRoot` that accepts any value and ignores it.
inline void SkipJson(JsonDocument::Value) {}

// Returns the start of `text`, at most 60 bytes, for a message. Control characters are spelled as
// escapes.
std::string JsonExcerpt(std::string_view text);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_JSON_H_
