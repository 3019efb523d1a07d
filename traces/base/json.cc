#include "traces/base/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::traces {

struct JsonNode {
  simdjson::ondemand::value value;
};

struct JsonDocument::Object {
  simdjson::ondemand::object object;
};

struct JsonDocument::Parser {
  explicit Parser(std::string_view plain) : text(plain) {}

  simdjson::padded_string text;
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
};

namespace {

constexpr size_t kMaxQuoted = 60;  // bytes of the document that a message repeats

// Returns the scalar at the start of `text`, or a phrase for another kind of value.
std::string Describe(std::string_view text) {
  if (text.empty()) return "the end of the file";
  switch (text.front()) {
    case '{':
      return "an object";
    case '[':
      return "an array";
    case '"': {
      size_t end = 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      return JsonExcerpt(text.substr(0, end + 1));
    }
    default:
      return fmt::format("'{}'", JsonExcerpt(text.substr(0, text.find_first_of(",:]} \t\r\n"))));
  }
}

// Returns the offset of the first error of encoding or strings, whose place the parser does not
// report: bytes that are not UTF-8, or a string that is not closed on its line. Without such an
// error the text ends too early, and its size is returned.
size_t FirstFault(std::string_view text) {
  size_t opened = std::string_view::npos;  // the opening quote of the current string
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    if (length > 1 && !IsUtf8(text.substr(at, length))) return at;
    if (opened != std::string_view::npos && byte < 0x20) return byte == '\n' ? opened : at;
    if (byte == '"') opened = opened == std::string_view::npos ? at : std::string_view::npos;
    at += length + (byte == '\\' && opened != std::string_view::npos ? 1 : 0);
  }
  return opened != std::string_view::npos ? opened : text.size();
}

std::string Message(int error) {
  return fmt::format("bad JSON: {}",
                     simdjson::error_message(static_cast<simdjson::error_code>(error)));
}

// Returns a description of the other programs' documents whose root has the key, or an empty text.
std::string_view KnownDocument(std::string_view key) {
  if (key == "traceEvents") return "a Chrome trace, such as torch.profiler (Kineto) writes";
  if (key == "nodes") return "an execution trace, such as PyTorch writes for Chakra";
  if (key == "device_traces") return "a memory snapshot in JSON; spillway replay reads its pickle";
  return {};
}

}  // namespace

std::string JsonExcerpt(std::string_view text) {
  size_t size = std::min(text.size(), kMaxQuoted);
  const auto is_continuation = [&] {
    return (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80;
  };
  while (size > 0 && size < text.size() && is_continuation()) --size;
  std::string out;
  for (const char c : text.substr(0, size)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    }
  }
  if (size < text.size()) out += "...";
  return out;
}

bool IsUtf8(std::string_view text) { return simdjson::validate_utf8(text); }

JsonDocument::JsonDocument(std::string_view text, std::string origin)
    : origin_(std::move(origin)), parser_(std::make_unique<Parser>(PlainText(text, origin_))) {
  Parser& parser = *parser_;
  if (parser.text.size() == 0 && text.size() > 3) {
    Fail("there is not enough memory to read this file");
  }
  if (const auto error = parser.parser.iterate(parser.text).get(parser.document)) {
    if (error == simdjson::EMPTY) Fail("the file is empty");
    const std::string what = Message(error);
    if (error == simdjson::CAPACITY || error == simdjson::MEMALLOC) Fail(what);
    Fail({FirstFault(this->text()), {}}, what);
  }
}

JsonDocument::~JsonDocument() = default;

std::string_view JsonDocument::text() const { return {parser_->text.data(), parser_->text.size()}; }

size_t JsonDocument::Offset(const JsonNode& node) const {
  auto value = node.value;
  return static_cast<size_t>(value.raw_json_token().data() - parser_->text.data());
}

int64_t JsonDocument::ReadHeader(std::string_view format, int64_t newest, int64_t oldest) {
  JsonNode node = Find("format", format);
  Enter("format", 0, Offset(node));
  if (const std::string_view found = ReadString(&node); found != format) {
    Fail(fmt::format("expected \"{}\", got \"{}\"", format, JsonExcerpt(found)));
  }
  Leave();
  node = Find("version");
  Enter("version", 0, Offset(node));
  const int64_t found =
      ReadInteger(&node, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (found < oldest || found > newest) {
    Fail(fmt::format(
        "unsupported version {}; this program reads version {}", found,
        oldest == newest ? fmt::format("{}", newest) : fmt::format("{} to {}", oldest, newest)));
  }
  Leave();
  parser_->document.rewind();
  return found;
}

void JsonDocument::ReadRootFields(std::span<const JsonField> fields) {
  ReadFields(Root(), fields);
  EndRoot();
}

void JsonDocument::ReadRootMap(JsonFunction<std::string_view, Value> read) {
  ReadFieldsAs(Root(), read);
  EndRoot();
}

void JsonDocument::ReadFromRoot(std::string_view key, JsonFunction<Value> read) {
  JsonNode node = Find(key);
  Enter(key, 0, Offset(node));
  read(&node);
  Leave();
}

void JsonDocument::ReadObjectFields(Value value, std::span<const JsonField> fields) {
  ReadFields(ObjectOf(value), fields);
}

void JsonDocument::ReadMap(Value value, JsonFunction<std::string_view, Value> read) {
  ReadFieldsAs(ObjectOf(value), read);
}

void JsonDocument::ReadArray(Value value, JsonFunction<Value> read) {
  simdjson::ondemand::array array;
  if (const auto error = value->value.get_array().get(array)) FailValue(error, "an array");
  size_t index = 0;
  for (auto result : array) {
    JsonNode element;
    Check(std::move(result).get(element.value));
    Enter({}, index++, Offset(element));
    read(&element);
    Leave();
  }
}

template <typename Visit>
void JsonDocument::ForEachField(Object object, const Visit& visit) {
  for (auto result : object.object) {
    simdjson::ondemand::field field;
    Check(std::move(result).get(field));
    // The key in the text, unless it has escapes.
    const char* const start = field.key().raw();
    const char* end = start;
    while (*end != '"' && *end != '\\') ++end;
    std::string_view key(start, end);
    if (*end != '"') {
      Check(field.unescaped_key().get(key));
      key = unescaped_.emplace_back(key);
    }
    JsonNode node{field.value()};
    visit(key, start, node);
  }
}

void JsonDocument::ReadFieldsAs(Object object, JsonFunction<std::string_view, Value> read) {
  ForEachField(object, [&](std::string_view key, const char*, JsonNode& node) {
    Enter(key, 0, Offset(node));
    read(key, &node);
    Leave();
  });
}

void JsonDocument::ReadFields(Object object, std::span<const JsonField> fields) {
  SPILLWAY_CHECK(fields.size() <= 32);
  uint32_t seen = 0;
  ForEachField(object, [&](std::string_view key, const char* start, JsonNode& node) {
    // Keys mostly come in the order of the fields: those that were there need no comparison.
    for (size_t i = 0; i < fields.size(); ++i) {
      if ((seen >> i & 1) != 0 || fields[i].key != key) continue;
      seen |= uint32_t{1} << i;
      Enter(fields[i].key, 0, Offset(node));
      fields[i].read(&node);
      Leave();
      return;
    }
    FailKey(key, static_cast<size_t>(start - 1 - text().data()), Offset(node), fields);
  });
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && (seen >> i & 1) == 0) FailMissing(fields[i].key);
  }
}

std::string_view JsonDocument::ReadString(Value value) {
  const std::string_view token = value->value.raw_json_token();  // with the blanks that follow
  if (token.starts_with('"') && token.find('\\') == std::string_view::npos) {
    simdjson::ondemand::raw_json_string in_place;
    Check(value->value.get_raw_json_string().get(in_place));
    return {in_place.raw(), token.rfind('"') - 1};
  }
  std::string_view text;
  if (const auto error = value->value.get_string().get(text)) FailValue(error, "a string");
  return unescaped_.emplace_back(text);
}

std::optional<std::string_view> JsonDocument::ReadStringOrNull(Value value) {
  bool null = false;
  if (const auto error = value->value.is_null().get(null)) FailValue(error, "a string or null");
  if (null) return std::nullopt;
  return ReadString(value);
}

bool JsonDocument::ReadBool(Value value) {
  bool truth = false;
  if (const auto error = value->value.get_bool().get(truth)) FailValue(error, "true or false");
  return truth;
}

double JsonDocument::ReadNumber(Value value) {
  double number = 0;
  if (const auto error = value->value.get_double().get(number)) FailValue(error, "a finite number");
  return number;
}

int64_t JsonDocument::ReadInteger(Value value, int64_t min, int64_t max) {
  int64_t number = 0;
  const auto error = value->value.get_int64().get(number);
  if (error != simdjson::SUCCESS || number < min || number > max) {
    FailValue(error, fmt::format("an integer from {} to {}", min, max));
  }
  return number;
}

JsonDocument::Place JsonDocument::Here() const {
  Place place{.offset = steps_[depth_].offset, .element = {}};
  for (const Step& step : std::span(steps_).subspan(1, depth_)) {
    if (step.key.data() == nullptr) {
      place.element += fmt::format("[{}]", step.index);
    } else {
      place.element += fmt::format("{}{}", place.element.empty() ? "" : ".", JsonExcerpt(step.key));
    }
  }
  return place;
}

void JsonDocument::Fail(std::string_view what) const { Fail(Here(), what); }

void JsonDocument::Fail(const Place& place, std::string_view what) const {
  const std::string_view before = text().substr(0, place.offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  throw InputError(fmt::format("{}:{}:{}: {}{}{}", origin_, line, column, place.element,
                               place.element.empty() ? "" : ": ", what));
}

JsonDocument::Object JsonDocument::Root() {
  Object root;
  if (const auto error = parser_->document.get_object().get(root.object)) {
    if (error == simdjson::INCORRECT_TYPE) Fail("expected an object");
    FailSyntax(error);
  }
  return root;
}

JsonDocument::Object JsonDocument::ObjectOf(Value value) {
  Object object;
  if (const auto error = value->value.get_object().get(object.object)) {
    FailValue(error, "an object");
  }
  return object;
}

JsonNode JsonDocument::Find(std::string_view key, std::string_view format) {
  JsonNode node;
  const auto error = parser_->document.find_field_unordered(key).get(node.value);
  if (error == simdjson::NO_SUCH_FIELD) {
    if (!format.empty()) FailIfKnown(format);
    FailMissing(key);
  }
  if (error == simdjson::INCORRECT_TYPE) Fail("expected an object");
  Check(error);
  return node;
}

void JsonDocument::FailIfKnown(std::string_view format) {
  parser_->document.rewind();
  for (auto field : Root().object) {
    std::string_view key;
    if (field.unescaped_key().get(key)) return;
    if (const auto known = KnownDocument(key); !known.empty()) {
      Fail(fmt::format("expected the format \"{}\", this is {}", format, known));
    }
  }
}

void JsonDocument::EndRoot() {
  const char* location = nullptr;
  if (!parser_->document.current_location().get(location)) {
    Fail({static_cast<size_t>(location - text().data()), {}}, "unexpected text after the last '}'");
  }
  parser_->document.rewind();
}

void JsonDocument::FailSyntax(Error error) {
  Place place = Here();
  const char* location = nullptr;
  if (error != simdjson::INCOMPLETE_ARRAY_OR_OBJECT &&
      parser_->document.current_location().get(location) == simdjson::SUCCESS) {
    place.offset = static_cast<size_t>(location - text().data());
  } else {
    place.offset = text().size();
  }
  Fail(place, Message(error));
}

void JsonDocument::FailValue(Error error, std::string_view expected) const {
  if (error != simdjson::SUCCESS && error != simdjson::INCORRECT_TYPE &&
      error != simdjson::NUMBER_ERROR) {
    Fail(Message(error));
  }
  const std::string_view rest = text().substr(steps_[depth_].offset);
  Fail(fmt::format("expected {}, got {}", expected, Describe(rest)));
}

void JsonDocument::FailKey(std::string_view key, size_t offset, size_t value,
                           std::span<const JsonField> fields) {
  std::vector<std::string> valid;
  for (const JsonField& field : fields) valid.emplace_back(field.key);
  if (std::find(valid.begin(), valid.end(), key) != valid.end()) {
    Enter(key, 0, value);
    Fail("this key occurs twice in its object");
  }
  Place place = Here();
  place.offset = offset;
  Fail(place, UnknownName("key", JsonExcerpt(key), valid));
}

void JsonDocument::FailMissing(std::string_view key) const {
  Fail(fmt::format("the key '{}' is missing", key));
}

}  // namespace spillway::traces
