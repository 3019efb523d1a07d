// Reads JSON documents, with errors that name the place, and makes excerpts of JSON for messages.
//
// Internal to the file formats. Documents are read on demand, field by field, into the caller's
// types; nothing is built in between. The format decides how deep reading goes, never the document.
// Everything in a document must be expected: an unknown, repeated or missing key, a wrong type and
// a number out of range all end in an `InputError` of the form
//   path:line:column: tensors[12].size: expected an integer from 0 to 9, got "twelve"

#ifndef SPILLWAY_TRACES_BASE_JSON_H_
#define SPILLWAY_TRACES_BASE_JSON_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "traces/base/error.h"

namespace spillway::traces {

struct JsonNode;  // a value of a document, as the parser sees it

// A function of the caller's, which outlives this.
template <typename... Args>
class JsonFunction {
 public:
  template <typename Function>
  JsonFunction(const Function& function)  // NOLINT: converts, so that a lambda can be given
      : function_(&function), call_([](const void* target, Args... args) {
          (*static_cast<const Function*>(target))(args...);
        }) {}

  void operator()(Args... args) const { call_(function_, args...); }

 private:
  const void* function_;
  void (*call_)(const void*, Args...);
};

// One key of an object and the function that reads its value.
struct JsonField {
  std::string_view key;  // a literal, which outlives the document
  bool required;
  JsonFunction<JsonNode*> read;
};

inline JsonField Required(std::string_view key, JsonFunction<JsonNode*> read) {
  return {key, true, read};
}

inline JsonField Optional(std::string_view key, JsonFunction<JsonNode*> read) {
  return {key, false, read};
}

// A document being read: first `ReadHeader`, then `ReadRoot`, then `ReadFromRoot` for what
// `ReadRoot` skipped. A `string_view` that comes from the document lives as long as the document.
class JsonDocument {
 public:
  // The argument of a function that reads a value. The function reads it once, before it returns.
  using Value = JsonNode*;

  // A place in the document, kept for a later error message.
  struct Place {
    size_t offset = 0;
    std::string element;
  };

  // Copies `text`. `origin` takes the place of the path in messages.
  JsonDocument(std::string_view text, std::string origin);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // Returns the root object's "version". Throws `InputError` unless it is from `oldest` to `newest`
  // and the root's "format" is `format`. Both keys may be anywhere in the root object.
  int64_t ReadHeader(std::string_view format, int64_t newest, int64_t oldest);
  int64_t ReadHeader(std::string_view format, int64_t version) {
    return ReadHeader(format, version, version);
  }

  // Reads the root object, and checks that nothing follows it.
  template <typename... Fields>
  void ReadRoot(const Fields&... fields) {
    ReadRootFields(std::array<JsonField, sizeof...(fields)>{fields...});
  }

  // Calls `read(key, value)` for each field of the root object, and checks that nothing follows it.
  void ReadRootMap(JsonFunction<std::string_view, Value> read);

  // Reads one key of the root object, which must be there: for values that need those of another
  // key first, in whatever order they stand.
  void ReadFromRoot(std::string_view key, JsonFunction<Value> read);

  template <typename... Fields>
  void ReadObject(Value value, const Fields&... fields) {
    ReadObjectFields(value, std::array<JsonField, sizeof...(fields)>{fields...});
  }

  // Calls `read(key, value)` for each field of an object with arbitrary keys.
  void ReadMap(Value value, JsonFunction<std::string_view, Value> read);

  // Calls `read(element)` for each element.
  void ReadArray(Value value, JsonFunction<Value> read);

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
  struct Parser;
  struct Object;
  using Error = int;  // the parser's code; 0 is none

  struct Step {
    std::string_view key;  // the key of an object's field; null for an element of an array
    size_t index = 0;      // in the array
    size_t offset = 0;
  };

  void ReadRootFields(std::span<const JsonField> fields);
  void ReadObjectFields(Value value, std::span<const JsonField> fields);
  void ReadFields(Object object, std::span<const JsonField> fields);
  void ReadFieldsAs(Object object, JsonFunction<std::string_view, Value> read);
  // Calls `visit(key, start of the key's text, value)` for each field.
  template <typename Visit>
  void ForEachField(Object object, const Visit& visit);

  void Enter(std::string_view key, size_t index, size_t offset) {
    SPILLWAY_CHECK(depth_ + 1 < steps_.size());
    steps_[++depth_] = {key, index, offset};
  }
  void Leave() { --depth_; }
  void Check(Error error) {
    if (error != 0) [[unlikely]]
      FailSyntax(error);
  }
  std::string_view text() const;
  size_t Offset(const JsonNode& node) const;

  Object Root();
  Object ObjectOf(Value value);
  // A value of the root object. Throws if there is none, with more to say of the documents of other
  // programs if the caller tells the `format` that it expects.
  JsonNode Find(std::string_view key, std::string_view format = {});
  void FailIfKnown(std::string_view format);
  // Checks that nothing follows the root object, and goes back to its start.
  void EndRoot();
  [[noreturn]] void FailSyntax(Error error);
  [[noreturn]] void FailValue(Error error, std::string_view expected) const;
  [[noreturn]] void FailKey(std::string_view key, size_t offset, size_t value,
                            std::span<const JsonField> fields);
  [[noreturn]] void FailMissing(std::string_view key) const;

  std::string origin_;
  std::unique_ptr<Parser> parser_;
  // From the root, which is the first, to the value being read, at `depth_`.
  std::array<Step, 16> steps_;
  size_t depth_ = 0;
  std::deque<std::string> unescaped_;  // strings that had escapes, decoded
};

// Accepts any value and reads nothing of it.
inline constexpr auto SkipJson = [](JsonDocument::Value) {};

// Returns the start of `text`, at most 60 bytes, for a message. Control characters are spelled as
// escapes.
std::string JsonExcerpt(std::string_view text);

bool IsUtf8(std::string_view text);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_JSON_H_
