// Tests of the layout of documents, and that readers accept the written text.

#include "traces/base/json_writer.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "traces/base/json.h"

namespace spillway::testing {
namespace {

TEST(JsonWriterTest, SpreadsContainersDownToADepth) {
  const struct {
    size_t spread;
    const char* text;
  } kCases[] = {
      {0, R"({"a": 1, "b": [{"c": 2}, {}, []]})"},
      {1, "{\n  \"a\": 1,\n  \"b\": [{\"c\": 2}, {}, []]\n}"},
      {2, "{\n  \"a\": 1,\n  \"b\": [\n    {\"c\": 2},\n    {},\n    []\n  ]\n}"},
      {3, "{\n  \"a\": 1,\n  \"b\": [\n    {\n      \"c\": 2\n    },\n    {},\n    []\n  ]\n}"},
  };
  for (const auto& [spread, text] : kCases) {
    JsonWriter json(spread);
    json.BeginObject().Put("a", 1).Key("b").BeginArray().BeginObject().Put("c", 2).EndObject();
    json.BeginObject().EndObject().BeginArray().EndArray().EndArray().EndObject();
    EXPECT_EQ(json.Take(), std::string(text) + "\n") << spread;
  }
}

TEST(JsonWriterTest, SpellsValues) {
  const struct {
    std::function<void(JsonWriter&)> put;
    const char* text;
  } kCases[] = {
      {[](auto& json) { json.Put("a \"\\\n\t\x01 \xc3\xa9"); },
       "\"a \\\"\\\\\\n\\t\\u0001 \xc3\xa9\""},
      {[](auto& json) { json.Put(std::string("s")); }, "\"s\""},
      {[](auto& json) { json.Put(true); }, "true"},
      {[](auto& json) { json.Put(std::numeric_limits<int64_t>::min()); }, "-9223372036854775808"},
      {[](auto& json) { json.Put(size_t{7}); }, "7"},
      {[](auto& json) { json.Put(0.1); }, "0.1"},
      {[](auto& json) { json.Put(3.0); }, "3"},
      {[](auto& json) { json.Put(1e300); }, "1e+300"},
      {[](auto& json) { json.Put(Bytes::KiB(2)); }, "2048"},
      {[](auto& json) { json.Put(std::optional<Bytes>()); }, "null"},
      {[](auto& json) { json.Put(std::optional<std::string>("s")); }, "\"s\""},
      {[](auto& json) { json.PutJson("12.000"); }, "12.000"},
  };
  for (const auto& [put, text] : kCases) {
    JsonWriter json(0);
    put(json);
    EXPECT_EQ(json.Take(), std::string(text) + "\n");
  }
}

TEST(JsonWriterTest, BreaksLinesWithinALine) {
  JsonWriter json(2);
  json.BeginObject().Key("a").BeginObjectOnOneLine().Put("b", 1).Key("c").BeginArray();
  for (const int value : {2, 3}) json.Break(4).Put(value);
  json.EndArray().Break(6).Put("d", 4).EndObject().EndObject();
  EXPECT_EQ(json.Take(), "{\n  \"a\": {\"b\": 1, \"c\": [\n    2,\n    3],\n      \"d\": 4}\n}\n");
}

TEST(JsonWriterTest, ReadersTakeBackWhatWasWritten) {
  const std::string name = "quote \" backslash \\ line \n bell \x07 \xe2\x82\xac";
  JsonWriter writer(1);
  writer.BeginObject().Put("format", "f").Put("version", 1).Put(name, 0.1).EndObject();
  JsonDocument reader(writer.Take(), "text");
  reader.ReadHeader("f", 1);
  double value = 0;
  reader.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                  Required(name, [&](auto v) { value = reader.ReadNumber(v); }));
  EXPECT_EQ(value, 0.1);
}

TEST(JsonWriterDeathTest, KnowsWhetherTheDocumentIsComplete) {
  EXPECT_DEATH(JsonWriter(0).BeginObject().Take(), "check failed: levels_\\.empty\\(\\)");
  EXPECT_DEATH(JsonWriter(0).BeginObject().Key("a").EndObject(), "check failed: .* !after_key_");
}

}  // namespace
}  // namespace spillway::testing
