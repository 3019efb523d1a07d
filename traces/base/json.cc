#include "traces/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway {
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
    if (length > 1 && !simdjson::validate_utf8(text.substr(at, length))) return at;
    if (opened != std::string_view::npos && byte < 0x20) return byte == '\n' ? opened : at;
    if (byte == '"') opened = opened == std::string_view::npos ? at : std::string_view::npos;
    at += length + (byte == '\\' && opened != std::string_view::npos ? 1 : 0);
  }
  return opened != std::string_view::npos ? opened : text.size();
}

// Describes a JSON document of another program by a key of its root. Returns an empty string for an
// unknown key.
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

JsonDocument::JsonDocument(std::string_view text, std::string origin)
    : origin_(std::move(origin)), text_(PlainText(text, origin_)) {
  if (text_.size() == 0 && text.size() > 3) Fail("there is not enough memory to read this file");
  if (const auto error = parser_.iterate(text_).get(document_)) {
    if (error == simdjson::EMPTY) Fail("the file is empty");
    const std::string what = fmt::format("bad JSON: {}", simdjson::error_message(error));
    if (error == simdjson::CAPACITY || error == simdjson::MEMALLOC) Fail(what);
    Fail({FirstFault({text_.data(), text_.size()}), {}}, what);
  }
}

int64_t JsonDocument::ReadHeader(std::string_view format, int64_t newest, int64_t oldest) {
  Value value = Find("format", [&] {
    document_.rewind();
    for (auto field : Root()) {
      std::string_view key;
      if (field.unescaped_key().get(key)) break;
      if (const auto known = KnownDocument(key); !known.empty()) {
        Fail(fmt::format("expected the format \"{}\", this is {}", format, known));
      }
    }
  });
  Enter("format", 0, Offset(value));
  if (const std::string_view found = ReadString(value); found != format) {
    Fail(fmt::format("expected \"{}\", got \"{}\"", format, JsonExcerpt(found)));
  }
  Leave();
  value = Find("version");
  Enter("version", 0, Offset(value));
  const int64_t found =
      ReadInteger(value, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (found < oldest || found > newest) {
    Fail(fmt::format(
        "unsupported version {}; this program reads version {}", found,
        oldest == newest ? fmt::format("{}", newest) : fmt::format("{} to {}", oldest, newest)));
  }
  Leave();
  document_.rewind();
  return found;
}

std::string_view JsonDocument::ReadString(Value value) {
  const std::string_view token = value.raw_json_token();  // includes the blanks that follow
  if (token.starts_with('"') && token.find('\\') == std::string_view::npos) {
    simdjson::ondemand::raw_json_string in_place;
    Check(value.get_raw_json_string().get(in_place));
    return {in_place.raw(), token.rfind('"') - 1};
  }
  std::string_view text;
  if (const auto error = value.get_string().get(text)) FailValue(error, "a string");
  return unescaped_.emplace_back(text);
}

std::optional<std::string_view> JsonDocument::ReadStringOrNull(Value value) {
  bool null = false;
  if (const auto error = value.is_null().get(null)) FailValue(error, "a string or null");
  if (null) return std::nullopt;
  return ReadString(value);
}

bool JsonDocument::ReadBool(Value value) {
  bool truth = false;
  if (const auto error = value.get_bool().get(truth)) FailValue(error, "true or false");
  return truth;
}

double JsonDocument::ReadNumber(Value value) {
  double number = 0;
  if (const auto error = value.get_double().get(number)) FailValue(error, "a finite number");
  return number;
}

int64_t JsonDocument::ReadInteger(Value value, int64_t min, int64_t max) {
  int64_t number = 0;
  const auto error = value.get_int64().get(number);
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
  const std::string_view before =
      std::string_view(text_.data(), text_.size()).substr(0, place.offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  throw InputError(fmt::format("{}:{}:{}: {}{}{}", origin_, line, column, place.element,
                               place.element.empty() ? "" : ": ", what));
}

simdjson::ondemand::object JsonDocument::Root() {
  simdjson::ondemand::object object;
  if (const auto error = document_.get_object().get(object)) {
    if (error == simdjson::INCORRECT_TYPE) Fail("expected an object");
    FailSyntax(error);
  }
  return object;
}

JsonDocument::Value JsonDocument::Find(std::string_view key,
                                       const std::function<void()>& if_missing) {
  Value value;
  const auto error = document_.find_field_unordered(key).get(value);
  if (error == simdjson::NO_SUCH_FIELD) {
    if (if_missing) if_missing();
    FailMissing(key);
  }
  if (error == simdjson::INCORRECT_TYPE) Fail("expected an object");
  Check(error);
  return value;
}

void JsonDocument::CheckEnd() {
  const char* location = nullptr;
  if (document_.current_location().get(location)) return;
  Fail({static_cast<size_t>(location - text_.data()), {}}, "unexpected text after the last '}'");
}

void JsonDocument::FailSyntax(simdjson::error_code error) {
  Place place = Here();
  const char* location = nullptr;
  if (error != simdjson::INCOMPLETE_ARRAY_OR_OBJECT &&
      document_.current_location().get(location) == simdjson::SUCCESS) {
    place.offset = static_cast<size_t>(location - text_.data());
  } else {
    place.offset = text_.size();
  }
  Fail(place, fmt::format("bad JSON: {}", simdjson::error_message(error)));
}

void JsonDocument::FailValue(simdjson::error_code error, std::string_view expected) const {
  if (error != simdjson::SUCCESS && error != simdjson::INCORRECT_TYPE &&
      error != simdjson::NUMBER_ERROR) {
    Fail(fmt::format("bad JSON: {}", simdjson::error_message(error)));
  }
  const auto rest = std::string_view(text_.data(), text_.size()).substr(steps_[depth_].offset);
  Fail(fmt::format("expected {}, got {}", expected, Describe(rest)));
}

void JsonDocument::FailKey(std::string_view key, size_t offset, size_t value,
                           std::span<const std::string_view> valid) {
  if (std::find(valid.begin(), valid.end(), key) != valid.end()) {
    Enter(key, 0, value);
    Fail("this key occurs twice in its object");
  }
  Place place = Here();
  place.offset = offset;
  Fail(place, UnknownName("key", JsonExcerpt(key), {valid.begin(), valid.end()}));
}

void JsonDocument::FailMissing(std::string_view key) const {
  Fail(fmt::format("the key '{}' is missing", key));
}

}  // namespace spillway
