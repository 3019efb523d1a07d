#include "traces/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "tests/testing/files.h"
#include "tests/unit/traces/format_cases.h"
#include "traces/base/file.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::Edited;
using ::spillway::testing::ErrorOfEdit;
using ::spillway::testing::InputErrorOf;
using ::spillway::testing::kSmall;
using ::spillway::testing::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Every truncation gives an `InputError`. Random damage gives an `InputError` or a valid trace,
// never anything else.
TEST(FormatErrorTest, EveryTruncationIsAnInputError) {
  for (size_t size = 0; size < kSmall.size(); ++size) {
    EXPECT_THAT(InputErrorOf([&] { ParseTrace(kSmall.substr(0, size), "t.json"); }),
                StartsWith("t.json:"))
        << size;
  }
}

TEST(FormatErrorTest, RandomDamageNeverEscapes) {
  std::mt19937 random(1);
  static constexpr std::string_view kBytes = "\"\\{}[]:,0-eE.1tfn \n\x00\xff\xc3";
  for (int i = 0; i < 20000; ++i) {
    std::string text(kSmall);
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    try {
      ParseTrace(text, "t.json").Validate();
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), StartsWith("t.json:"));
    }
  }
}

TEST(FormatErrorTest, DeepNestingIsAnInputError) {
  const std::string deep(1'000'000, '[');
  EXPECT_THROW(ParseTrace(deep, "t.json"), InputError);
  EXPECT_THAT(ErrorOfEdit("\"shape\": [2, 3]", "\"shape\": " + deep),
              HasSubstr("tensors[0].shape[0]: expected an integer"));
  EXPECT_THAT(ErrorOfEdit("\"shape\": [2, 3]",
                          "\"shape\": " + std::string(5000, '[') + std::string(5000, ']')),
              HasSubstr("tensors[0].shape[0]: expected an integer"));
}

TEST(FormatErrorTest, Json) {
  EXPECT_EQ(InputErrorOf([] { ParseTrace("", "t.json"); }), "t.json:1:1: the file is empty");
  EXPECT_EQ(InputErrorOf([] { ParseTrace(" \n", "t.json"); }), "t.json:1:1: the file is empty");
  EXPECT_EQ(InputErrorOf([] { ParseTrace("[]", "t.json"); }), "t.json:1:1: expected an object");
  EXPECT_EQ(InputErrorOf([] { ParseTrace("7", "t.json"); }), "t.json:1:1: expected an object");
  EXPECT_EQ(InputErrorOf([] { ParseTrace(std::string(kSmall) + " {}", "t.json"); }),
            "t.json:13:26: unexpected text after the last '}'");
  EXPECT_THAT(ErrorOfEdit("24},", "24}"), StartsWith("t.json:7:1: tensors: bad JSON: "));
  EXPECT_THAT(ErrorOfEdit("\"n\"", "\"\xff\""),
              HasSubstr("bad JSON: The input is not valid UTF-8"));
  EXPECT_THAT(ErrorOfEdit("\"n:2\"", "\"\\q\""), StartsWith("t.json:2:51: name: bad JSON: "));
}

TEST(FormatErrorTest, FormatAndVersion) {
  EXPECT_EQ(ErrorOfEdit("spillway-trace", "spillway-cost-table"),
            "t.json:2:11: format: expected \"spillway-trace\", got \"spillway-cost-table\"");
  EXPECT_EQ(ErrorOfEdit("\"version\": 1", "\"version\": 99"),
            "t.json:2:40: version: unsupported version 99; this program reads version 1 to 12");
  EXPECT_EQ(ErrorOfEdit("\"format\": \"spillway-trace\", ", ""),
            "t.json:1:1: the key 'format' is missing");
  // The version is checked before any key that a later version may have added.
  EXPECT_THAT(ErrorOfEdit("\"version\": 1, \"name\"", "\"new\": {}, \"version\": 99, \"name\""),
              HasSubstr("unsupported version 99"));
}

TEST(FormatErrorTest, Keys) {
  EXPECT_EQ(
      ErrorOfEdit("\"alias_of\"", "\"aliasof\""),
      "t.json:7:66: tensors[1]: unknown key 'aliasof'; did you mean 'alias_of'? (valid: name, "
      "kind, shape, size, dtype, alias_of, part_of, offset, held_until, request, movable, lane)");
  EXPECT_EQ(ErrorOfEdit("\"size\": 24, \"alias_of\"", "\"alias_of\""),
            "t.json:7:1: tensors[1]: the key 'size' is missing");
  EXPECT_EQ(ErrorOfEdit("\"size\": 24, \"alias_of\"", "\"size\": 24, \"size\": 24, \"alias_of\""),
            "t.json:7:74: tensors[1].size: this key occurs twice in its object");
  EXPECT_EQ(ErrorOfEdit("\"size\": 24", "\"size\": 24, \"s\\u0069ze\": 24"),
            "t.json:6:74: tensors[0].size: this key occurs twice in its object");
  EXPECT_EQ(ErrorOfEdit("\"preset\": \"torch\", ", ""), "t.json:1:1: the key 'preset' is missing");
  EXPECT_EQ(
      ErrorOfEdit("\"preset\": \"torch\", ", "\"preset\": \"torch\", \"extra\": 1, "),
      "t.json:3:20: unknown key 'extra' (valid: format, version, name, network, batch, preset, "
      "training, recording, layers, tensors, ops, saved, hooks, sizes, compiled)");
  EXPECT_EQ(ErrorOfEdit(", \"flops\": 6", ""),
            "t.json:12:12: ops[0].slots[0]: the key 'flops' is missing");
}

TEST(FormatErrorTest, Types) {
  EXPECT_EQ(ErrorOfEdit("\"size\": 24", "\"size\": \"24\""),
            "t.json:6:57: tensors[0].size: expected an integer from 0 to 1152921504606846976, got "
            "\"24\"");
  EXPECT_THAT(ErrorOfEdit("\"name\": \"x\"", "\"name\": null"),
              HasSubstr("tensors[0].name: expected a string, got 'null'"));
  EXPECT_THAT(ErrorOfEdit("\"training\": true", "\"training\": 1"),
              HasSubstr("training: expected true or false, got '1'"));
  EXPECT_THAT(ErrorOfEdit("\"shape\": [2, 3]", "\"shape\": {}"),
              HasSubstr("tensors[0].shape: expected an array, got an object"));
  EXPECT_THAT(ErrorOfEdit("{\"elements\": 3, \"alpha\": 0.5}", "[3]"),
              HasSubstr("ops[0].attributes: expected an object, got an array"));
  EXPECT_THAT(ErrorOfEdit("\"elements\": 3", "\"elements\": \"three\""),
              HasSubstr("ops[0].attributes.elements: expected a finite number, got \"three\""));
  EXPECT_THAT(ErrorOfEdit("\"alias_of\": \"x\"", "\"alias_of\": null"),
              HasSubstr("tensors[1].alias_of: expected a string, got 'null'"));
}

TEST(FormatErrorTest, Numbers) {
  for (const char* number : {"-1", "24.0", "2.4e1", "1e2", "9223372036854775808",
                             "1152921504606846977", "1e400", "NaN", "Infinity", "0x18", "024"}) {
    EXPECT_THAT(ErrorOfEdit("\"size\": 24", std::string("\"size\": ") + number),
                StartsWith("t.json:6:"))
        << number;
  }
  for (const char* number : {"1e400", "-1e400", "NaN", "Infinity", "true", "1."}) {
    EXPECT_THAT(ErrorOfEdit("\"alpha\": 0.5", std::string("\"alpha\": ") + number),
                StartsWith("t.json:11:77: ops[0].attributes.alpha: expected a finite number"))
        << number;
  }
  EXPECT_THAT(ErrorOfEdit("\"batch\": 2", "\"batch\": 0"),
              HasSubstr("batch: expected an integer from 1 to 9223372036854775807, got '0'"));
}

TEST(FormatErrorTest, Names) {
  EXPECT_EQ(ErrorOfEdit("\"inputs\": [\"x\"]", "\"inputs\": [\"x\", \"w\"]"),
            "t.json:10:97: ops[0].inputs[1]: there is no tensor 'w'");
  EXPECT_EQ(ErrorOfEdit("\"layer\": \"l\"", "\"layer\": \"m\""),
            "t.json:10:28: ops[0].layer: there is no layer 'm'");
  EXPECT_EQ(ErrorOfEdit("\"alias_of\": \"x\"", "\"alias_of\": \"q\""),
            "t.json:7:78: tensors[1].alias_of: there is no tensor 'q'");
  EXPECT_EQ(ErrorOfEdit("\"name\": \"y\"", "\"name\": \"x\""),
            "t.json:7:10: tensors[1].name: 'x' is already the name of element [0]");
  EXPECT_EQ(
      ErrorOfEdit("{\"name\": \"l\", \"type\": \"relu\"}",
                  "{\"name\": \"l\", \"type\": \"relu\"}, {\"name\": \"l\", \"type\": \"relu\"}"),
      "t.json:4:52: layers[1].name: 'l' is already the name of element [0]");
  EXPECT_EQ(ErrorOfEdit("true}]}", "true}, {\"name\": \"l.fwd\"}]}"),
            "t.json:13:34: ops[1].name: 'l.fwd' is already the name of element [0]");
}

TEST(FormatErrorTest, Enumerations) {
  EXPECT_EQ(ErrorOfEdit("\"kind\": \"activation\"", "\"kind\": \"activations\""),
            "t.json:7:23: tensors[1].kind: unknown kind 'activations'; did you mean 'activation'? "
            "(valid: input, parameter, activation, gradient, parameter_gradient, optimizer_state, "
            "scratch)");
  EXPECT_THAT(
      ErrorOfEdit("\"type\": \"relu\"", "\"type\": \"Relu\""),
      HasSubstr("layers[0].type: unknown type 'Relu'; did you mean 'relu'? (valid: input, "));
  EXPECT_THAT(
      ErrorOfEdit("\"forward\"", "\"sideways\""),
      HasSubstr("ops[0].phase: unknown phase 'sideways' (valid: forward, backward, update)"));
}

TEST(FormatErrorTest, WholeTrace) {
  EXPECT_EQ(ErrorOfEdit("\"kind\": \"input\"", "\"kind\": \"activation\""),
            "t.json: trace 'n:2': op 'l.fwd' reads tensor 'x' before any op has written it");
}

TEST(FormatErrorTest, LongTextIsCut) {
  const std::string message = ErrorOfEdit("[\"x\"]", "[\"" + std::string(100'000, 'w') + "\"]");
  EXPECT_THAT(message, HasSubstr("there is no tensor 'www"));
  EXPECT_LT(message.size(), 200);
}

TEST(FormatErrorTest, NamesThePath) {
  const TemporaryDirectory directory;
  WriteFile(directory / "bad.json.zst", Edited("\"size\": 24", "\"size\": -1"));
  const std::string path = (directory / "bad.json.zst").string();
  EXPECT_THAT(InputErrorOf([&] { ReadTrace(path); }),
              StartsWith(path + ":6:57: tensors[0].size: expected an integer"));
}

}  // namespace
}  // namespace spillway::testing
