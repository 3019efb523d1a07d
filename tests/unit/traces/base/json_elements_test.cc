#include "traces/base/json_elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Read {
  std::string header;
  std::vector<std::string> objects;
  int64_t cut_off = 0;
  bool truncated = false;
};

Read ReadAll(TextStream& stream) {
  JsonElements elements(stream, "nodes", "id");
  Read read;
  while (const auto text = elements.Next()) read.objects.emplace_back(*text);
  read.header = elements.header();
  read.cut_off = elements.cut_off();
  read.truncated = elements.truncated();
  return read;
}

Read ReadText(const std::string& text) {
  TextStream stream(text, "t.json");
  return ReadAll(stream);
}

TEST(JsonElementsTest, ObjectsOfTheArray) {
  const Read read = ReadText(
      R"({"schema": "1.1", "a": {"nodes": [{"id": 0}]}, "s": "nodes", "nodes": [{"id": 1},)"
      "\n{\"id\": 2}], \"finish\": [{\"id\": 3}]}");
  EXPECT_EQ(read.header, R"({"schema": "1.1", "a": {"nodes": [{"id": 0}]}, "s": "nodes"})");
  EXPECT_THAT(read.objects, ElementsAre(R"({"id": 1})", R"({"id": 2})"));
  EXPECT_EQ(read.cut_off, 0);
  EXPECT_FALSE(read.truncated);
}

TEST(JsonElementsTest, HeaderOfNothing) { EXPECT_EQ(ReadText("{ \"nodes\" : []}").header, "{}"); }

// Braces, brackets and quotes in strings are text.
TEST(JsonElementsTest, Strings) {
  const std::vector<std::string> objects{R"({"id": 1, "name": "}\"]{\\"})",
                                         R"({"id": 2, "name": "\\\"\\"})",
                                         R"({"id": 3, "list": [{"id": "]"}, {}]})"};
  EXPECT_THAT(
      ReadText("{\"nodes\": [" + objects[0] + "," + objects[1] + "," + objects[2] + "]}").objects,
      ElementsAreArray(objects));
}

// Damage that the writer is known to cause, in an array with one object per line.
TEST(JsonElementsTest, BrokenText) {
  struct Case {
    const char* nodes;
    std::vector<std::string> objects;
    int64_t cut_off = 0;
    bool truncated = false;
  };
  const std::string one = R"({"id": 1})", two = R"({"id": 2})";
  for (const Case& test : {
           Case{"{\"id\": 1}\n{\"id\": 2}]}", {one, two}},
           Case{"{\"id\": 1}{\"id\": 2}]}", {one, two}},
           Case{"{\"id\": 0, \"a\": [\n{\"id\": 1},\n{\"id\": 2}]}", {one, two}, 1},
           Case{"{\"id\": 0, \"a\": \"b\n  {\n  \"id\": 1}]}", {"{\n  \"id\": 1}"}, 1},
           Case{"{\"id\": 0, \"a\n{\"id\": 0, \"b\": {\n{\"id\": 2}]}", {two}, 2},
           // An object ends too early; the rest of its line is skipped.
           Case{"{\"id\": 1}, \"a\": 5},\n{\"id\": 2}]}", {one, two}},
           // A nested object does not begin with the key or does not begin its line.
           Case{"{\"id\": 1, \"a\": [\n{\"b\": 0}]}]}", {"{\"id\": 1, \"a\": [\n{\"b\": 0}]}"}},
           Case{"{\"id\": 1},\n{\"id\": 2", {one}, 1, true},
           Case{"{\"id\": 1},\n{\"id\": \"\\", {one}, 1, true},
           Case{"{\"id\": 1},\n", {one}, 0, true},
           Case{"", {}, 0, true},
       }) {
    SCOPED_TRACE(test.nodes);
    const Read read = ReadText(std::string("{\"nodes\": [") + test.nodes);
    EXPECT_THAT(read.objects, ElementsAreArray(test.objects));
    EXPECT_EQ(read.cut_off, test.cut_off);
    EXPECT_EQ(read.truncated, test.truncated);
  }
}

// Objects of all lengths, so that each kind of character lies on a border between two pieces of 1
// MiB in some file. One object spans several pieces.
TEST(JsonElementsTest, ObjectsAcrossPieces) {
  const TemporaryDirectory directory;
  for (int shift = 0; shift < 16; ++shift) {
    std::vector<std::string> objects;
    std::string text =
        "{\"a\": \"" + std::string((size_t{1} << 20) - 40 + shift, 'x') + "\", \"nodes\": [\n";
    for (int i = 0; text.size() < (size_t{5} << 19); ++i) {
      objects.push_back("{\"id\": " + std::to_string(i) + R"(, "\"": ")" +
                        std::string(i == 5 ? size_t{1} << 20 : i % 511, '}') + "\\\\\"}");
      text += objects.back() + ",\n";
    }
    text.replace(text.size() - 2, 2, "]}");
    WriteRaw(directory / "t.json", text);
    TextStream stream(directory / "t.json");
    const Read read = ReadAll(stream);
    EXPECT_EQ(read.objects, objects) << shift;
    EXPECT_EQ(read.cut_off, 0);
    EXPECT_FALSE(read.truncated);
  }
}

// The rest of an object that ended too early lies on a border between two pieces.
TEST(JsonElementsTest, RestOfABrokenObjectAcrossPieces) {
  const std::string one = "{\"id\": 1}", two = "{\"id\": 2}";
  const std::string rest = ", \"a\": \"" + std::string(400, 'x') + "\", \"b\": {\"c\": 5}}";
  for (size_t before = 380; before < rest.size(); ++before) {
    std::string text = "{\"nodes\": [\n" + one;
    text.insert(1, std::string((size_t{1} << 20) - text.size() - before, ' '));
    text += rest + ",\n" + two + "]}";
    const TemporaryDirectory directory;
    WriteRaw(directory / "t.json", text);
    TextStream stream(directory / "t.json");
    EXPECT_THAT(ReadAll(stream).objects, ElementsAre(one, two)) << before;
  }
}

// The reader skips cut-off objects one by one, not each within the previous one.
TEST(JsonElementsTest, ThousandsOfCutOffObjects) {
  std::string text = "{\"nodes\": [\n";
  for (int i = 0; i < 200000; ++i) text += "{\"id\": [{\n";
  const Read read = ReadText(text + "{\"id\": 1}\n]}");
  EXPECT_THAT(read.objects, ElementsAre("{\"id\": 1}"));
  EXPECT_EQ(read.cut_off, 200000);
}

TEST(JsonElementsTest, TextIsPadded) {
  TextStream stream(R"({"nodes": [{"id": 1}]})", "t.json");
  JsonElements elements(stream, "nodes", "id");
  const auto text = elements.Next();
  ASSERT_TRUE(text);
  const volatile char last = text->data()[text->size() + JsonElements::kPadding - 1];
  static_cast<void>(last);  // AddressSanitizer sees a read outside of the text's memory
}

TEST(JsonElementsTest, RefusesWhatHasNoSuchArray) {
  struct Case {
    const char* text;
    const char* what;
  };
  for (const Case& test : {
           Case{"", "the file is empty"},
           Case{"[{\"nodes\": []}]", "this is no JSON object"},
           Case{"\xef\xbb\xbf[]", "this is no JSON object"},
           Case{"{\"a\": [\"nodes\", {\"nodes\": []}]}", "there is no such array"},
           Case{"{\"nodes\": {}}", "its value is no array"},
           Case{"{\"nodes\" ", "the text ends there"},
           Case{"{\"nodes\":", "the text ends there"},
       }) {
    EXPECT_EQ(
        InputErrorOf([&] { ReadText(test.text); }),
        std::string("t.json: ") + test.what + ", expected a JSON object with an array 'nodes'")
        << test.text;
  }
}

TEST(JsonElementsTest, NamesOtherKindsOfFiles) {
  EXPECT_THAT(InputErrorOf([] { ReadText("\x80\x04\x95"); }),
              HasSubstr("t.json: this is a Python pickle"));
}

TEST(JsonElementsTest, SkipsAByteOrderMark) {
  TextStream stream("\xef\xbb\xbf{\"nodes\": [{\"id\": 1}, {\"id\": 2}]}", "t.json");
  JsonElements elements(stream, "nodes", "id");
  EXPECT_EQ(elements.Next(), "{\"id\": 1}");
  EXPECT_EQ(elements.Next(), "{\"id\": 2}");
  EXPECT_EQ(InputErrorOf([&] { elements.Fail("wrong"); }), "t.json: byte 25: wrong");
}

TEST(JsonElementsTest, ErrorsNameTheObject) {
  TextStream stream(R"({"nodes": [{"id": 1}, {"id": 2}]})", "t.json");
  JsonElements elements(stream, "nodes", "id");
  elements.Next();
  elements.Next();
  EXPECT_EQ(InputErrorOf([&] { elements.Fail("too large"); }), "t.json: byte 22: too large");
}

}  // namespace
}  // namespace spillway::testing
