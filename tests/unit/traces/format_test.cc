#include "traces/format.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "tests/testing/files.h"
#include "traces/base/file.h"

namespace spillway {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the `index`-th JSON block of the specification.
std::string ExampleOfSpecification(int index) {
  const std::string text = ReadFile(testing::InSource("traces/FORMAT.md"));
  size_t begin = 0;
  for (int i = 0; i <= index; ++i) begin = text.find("```json\n", begin) + 8;
  return text.substr(begin, text.find("```", begin) - begin);
}

// The smallest trace with a value of every kind, one element per line.
constexpr std::string_view kSmall = R"({
"format": "spillway-trace", "version": 1, "name": "n:2", "network": "n", "batch": 2,
"preset": "torch", "training": true,
"layers": [{"name": "l", "type": "relu"}],
"tensors": [
{"name": "x", "kind": "input", "shape": [2, 3], "size": 24},
{"name": "y", "kind": "activation", "shape": [2, 3], "size": 24, "alias_of": "x"},
{"name": "s", "kind": "scratch", "shape": [], "size": 0}],
"ops": [
{"name": "l.fwd", "layer": "l", "type": "relu", "phase": "forward", "batch": 2, "inputs": ["x"],
 "outputs": ["y"], "scratch": ["s"], "attributes": {"elements": 3, "alpha": 0.5},
 "slots": [{"name": "fwd", "signature": "relu.fwd elements=3", "flops": 6, "traffic": 48}],
 "recomputable": true}]})";

// Returns `kSmall` with the first `from` replaced by `to`.
std::string Edited(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOfEdit(std::string_view from, std::string_view to) {
  return InputErrorOf([&] { ParseTrace(Edited(from, to), "t.json"); });
}

TEST(FormatTest, ReadsEveryField) {
  const Trace trace = ParseTrace(kSmall, "t.json");
  EXPECT_EQ(trace.name, "n:2");
  EXPECT_EQ(trace.network, "n");
  EXPECT_EQ(trace.batch, 2);
  EXPECT_EQ(trace.preset, "torch");
  EXPECT_TRUE(trace.training);
  ASSERT_EQ(trace.layers.size(), 1);
  EXPECT_EQ(trace.layers[0].name, "l");
  EXPECT_EQ(trace.layers[0].type, OpType::kRelu);
  ASSERT_EQ(trace.tensors.size(), 3);
  EXPECT_EQ(trace.tensors[0].kind, TensorKind::kInput);
  EXPECT_THAT(trace.tensors[0].shape, ::testing::ElementsAre(2, 3));
  EXPECT_EQ(trace.tensors[0].size, Bytes(24));
  EXPECT_EQ(trace.tensors[0].alias_of, std::nullopt);
  EXPECT_EQ(trace.tensors[1].alias_of, TensorId{0});
  ASSERT_EQ(trace.ops.size(), 1);
  const Op& op = trace.ops[0];
  EXPECT_EQ(op.name, "l.fwd");
  EXPECT_EQ(op.layer, LayerId{0});
  EXPECT_EQ(op.type, OpType::kRelu);
  EXPECT_EQ(op.phase, Phase::kForward);
  EXPECT_EQ(op.batch, 2);
  EXPECT_THAT(op.inputs, ::testing::ElementsAre(TensorId{0}));
  EXPECT_THAT(op.outputs, ::testing::ElementsAre(TensorId{1}));
  EXPECT_THAT(op.scratch, ::testing::ElementsAre(TensorId{2}));
  ASSERT_EQ(op.slots.size(), 1);
  EXPECT_EQ(op.slots[0].signature, "relu.fwd elements=3");
  EXPECT_EQ(op.flops(), 6);
  EXPECT_EQ(op.traffic(), Bytes(48));
  EXPECT_EQ(op.IntAttribute("elements"), 3);
  EXPECT_EQ(op.FindAttribute("alpha"), 0.5);
  EXPECT_TRUE(op.recomputable);
}

TEST(FormatTest, ExampleOfSpecificationRoundTripsToItsOwnBytes) {
  const std::string example = ExampleOfSpecification(0);
  const Trace trace = ParseTrace(example, "FORMAT.md");
  EXPECT_EQ(trace.layers.size(), 2);
  EXPECT_EQ(trace.ops.size(), 5);
  const auto root = trace.Root(TensorId{9});
  EXPECT_EQ(trace.tensor(TensorId{9}).name, "loss.dx");
  EXPECT_EQ(trace.tensor(root).name, "fc.y");
  EXPECT_EQ(FormatTrace(trace), example);
}

TEST(FormatTest, RoundTripsThroughFiles) {
  const TemporaryDirectory directory;
  const Trace trace = ParseTrace(kSmall, "t.json");
  for (const char* name : {"a.json", "a.json.zst"}) {
    WriteTrace(trace, directory / name);
    EXPECT_EQ(FormatTrace(ReadTrace(directory / name)), FormatTrace(trace));
  }
}

// Returns `text`, which is laid out like `kSmall`, with the ops first, then the tensors, the layers
// and the header.
std::string Shuffled(const std::string& text) {
  const size_t layers = text.find("\"layers\""), tensors = text.find("\"tensors\""),
               ops = text.find("\"ops\"");
  const std::string shuffled = "{" + text.substr(ops, text.size() - ops - 1) + "," +
                               text.substr(tensors, ops - tensors) +
                               text.substr(layers, tensors - layers) + text.substr(1, layers - 1);
  return shuffled.substr(0, shuffled.rfind(',')) + "}";
}

TEST(FormatTest, OrderOfKeysDoesNotMatter) {
  const std::string small(kSmall);
  EXPECT_EQ(FormatTrace(ParseTrace(Shuffled(small), "t.json")),
            FormatTrace(ParseTrace(small, "t.json")));
}

// An escape may stand for any character, and white space after a string is not part of the string.
TEST(FormatTest, SpellingDoesNotMatter) {
  std::string text(kSmall);
  using Spelling = std::pair<std::string_view, std::string_view>;
  for (const auto& [plain, other] : {Spelling{R"("name")", R"("n\u0061me" )"},
                                     {R"("alpha")", R"("\u0061lpha")"},
                                     {R"("l")", R"("\u006c")"},
                                     {R"("x")", R"("\u0078" )"},
                                     {R"("y")", "\"y\" \n\t"}}) {
    size_t at = 0;
    while ((at = text.find(plain, at)) != std::string::npos) {
      text.replace(at, plain.size(), other);
      at += other.size();
    }
  }
  const std::string expected = FormatTrace(ParseTrace(kSmall, "t.json"));
  EXPECT_EQ(FormatTrace(ParseTrace(text, "t.json")), expected);
  EXPECT_EQ(FormatTrace(ParseTrace(Shuffled(text), "t.json")), expected);
}

TEST(FormatTest, AliasMayNameALaterTensor) {
  const Trace trace = ParseTrace(Edited(R"("size": 24},)", R"("size": 24, "alias_of": "z"},
{"name": "z", "kind": "input", "shape": [6], "size": 24},)"),
                                 "t.json");
  EXPECT_EQ(trace.tensors[0].alias_of, TensorId{1});
  EXPECT_EQ(trace.tensor(trace.Root(TensorId{2})).name, "z");
}

// A trace without views and parts is written as version 1.
TEST(FormatTest, ViewsAndPartsNeedVersion2) {
  const std::string views = R"("size": 24},
{"name": "v", "kind": "activation", "shape": [3], "size": 12, "alias_of": "y", "offset": 8},
{"name": "p", "kind": "parameter", "shape": [1], "size": 4, "part_of": "w", "offset": 12},
{"name": "w", "kind": "parameter", "shape": [4], "size": 16},)";
  std::string text = Edited(R"("size": 24},)", views);
  EXPECT_EQ(InputErrorOf([&] { ParseTrace(text, "t.json"); }),
            "t.json:7:90: tensors[1].offset: the key 'offset' needs version 2 of the format");
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  const Trace trace = ParseTrace(text, "t.json");
  EXPECT_EQ(trace.tensors[1].offset, Bytes(8));
  EXPECT_EQ(trace.OffsetInStorage(TensorId{1}), Bytes(8));
  EXPECT_EQ(trace.tensors[2].part_of, TensorId{3});
  EXPECT_EQ(trace.tensors[2].offset, Bytes(12));
  const std::string written = FormatTrace(trace);
  EXPECT_THAT(written, HasSubstr("\"version\": 2"));
  EXPECT_EQ(ParseTrace(written, "t.json"), trace);
  EXPECT_THAT(FormatTrace(ParseTrace(kSmall, "t.json")), HasSubstr("\"version\": 1"));
}

TEST(FormatTest, TypesNeedVersion4) {
  std::string text = Edited(R"("kind": "input", "shape": [2, 3], "size": 24)",
                            R"("kind": "input", "shape": [2, 6], "size": 24, "dtype": "bfloat16")");
  EXPECT_EQ(InputErrorOf([&] { ParseTrace(text, "t.json"); }),
            "t.json:6:70: tensors[0].dtype: the key 'dtype' needs version 4 of the format");
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 4");
  Trace trace = ParseTrace(text, "t.json");
  EXPECT_EQ(trace.tensors[0].dtype, DataType::kBfloat16);
  EXPECT_EQ(trace.tensors[1].dtype, DataType::kFloat32);
  EXPECT_EQ(ParseTrace(FormatTrace(trace), "t.json"), trace);

  // Only ops that multiply matrices have an arithmetic that matters.
  EXPECT_EQ(ArithmeticOf(trace), "fp32");
  trace.ops[0].slots[0].arithmetic = Arithmetic::kBf16;
  EXPECT_EQ(ArithmeticOf(trace), "fp32");
  trace.ops[0].type = OpType::kMatmul;
  EXPECT_EQ(ArithmeticOf(trace), "bf16");
  trace.ops[0].slots.push_back(trace.ops[0].slots[0]);
  trace.ops[0].slots[1].arithmetic = Arithmetic::kFp32;
  EXPECT_EQ(ArithmeticOf(trace), "fp32+bf16");
  EXPECT_EQ(ParseTrace(FormatTrace(trace), "t.json"), trace);

  text.replace(text.find("\"flops\": 6"), 10, "\"flops\": 6, \"arithmetic\": \"bf61\"");
  EXPECT_THAT(InputErrorOf([&] { ParseTrace(text, "t.json"); }),
              HasSubstr("unknown arithmetic 'bf61'; did you mean 'bf16'? (valid: fp32, tf32, "
                        "bf16, fp16, fp8)"));
}

TEST(FormatTest, EscapesStrings) {
  Trace trace = ParseTrace(kSmall, "t.json");
  std::string all;
  for (char c = 0; c < 127; ++c) all += c;
  all += "\x7f\u00e9\u2014\U0001F600/";
  trace.tensors[0].name = all;
  trace.ops[0].attributes.push_back({all, 1});
  const std::string text = FormatTrace(trace);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\0'), 0);
  const Trace read = ParseTrace(text, "t.json");
  EXPECT_EQ(read.tensors[0].name, all);
  EXPECT_EQ(read.ops[0].attributes.back().name, all);
  EXPECT_EQ(FormatTrace(read), text);
}

TEST(FormatTest, NumbersKeepEveryBit) {
  Trace trace = ParseTrace(kSmall, "t.json");
  auto& attributes = trace.ops[0].attributes;
  attributes.clear();
  for (const double value : {0.1, -0.0, 1e-5, 5e-324, 1.7976931348623157e308, 9007199254740992.0,
                             -3.0, 1.0 / 3, 1e22, 123456789012345680.0}) {
    attributes.push_back({"a" + std::to_string(attributes.size()), value});
  }
  const Trace read = ParseTrace(FormatTrace(trace), "t.json");
  for (size_t i = 0; i < attributes.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(read.ops[0].attributes[i].value),
              std::bit_cast<uint64_t>(attributes[i].value))
        << attributes[i].value;
  }
  EXPECT_EQ(FormatTrace(read), FormatTrace(trace));
}

TEST(FormatTest, WriterRefusesWhatCouldNotBeReadBack) {
  Trace trace = ParseTrace(kSmall, "t.json");
  trace.network = "\xff";
  EXPECT_EQ(InputErrorOf([&] { FormatTrace(trace); }), "trace 'n:2': a name is not valid UTF-8");
  trace = ParseTrace(kSmall, "t.json");
  trace.ops[0].attributes[0].value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(InputErrorOf([&] { FormatTrace(trace); }),
            "trace 'n:2': op 'l.fwd': the attribute 'elements' is not finite");
}

// Returns a random valid trace with chains of aliases, odd names and empty lists.
Trace RandomTrace(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const auto name = [&](const char* prefix, size_t i) {
    static constexpr const char* kTails[] = {"", "\"", "\\", "\n", " {}", "\u00e9", "/", "\x01"};
    return prefix + std::to_string(i) + kTails[draw(8)];
  };
  Trace trace;
  trace.name = name("trace", seed);
  trace.network = name("network", 0);
  trace.batch = 1 + draw(512);
  trace.training = draw(2) == 0;
  for (int64_t i = 0; i <= draw(5); ++i) {
    trace.layers.push_back({name("layer", i), static_cast<OpType>(draw(15))});
  }
  const int64_t tensors = 1 + draw(30);
  for (int64_t i = 0; i < tensors; ++i) {
    Tensor tensor{
        name("t", i), static_cast<TensorKind>(draw(7)), {}, Bytes(draw(int64_t{1} << 31)), {}};
    for (int64_t d = draw(5); d > 0; --d) tensor.shape.push_back(draw(1000));
    if (draw(3) == 0 && i + 1 < tensors) {
      tensor.alias_of = static_cast<TensorId>(i + 1 + draw(tensors - i - 1));
      tensor.size = Bytes(0);
    }
    trace.tensors.push_back(tensor);
  }
  for (Tensor& tensor : trace.tensors) {
    if (!tensor.alias_of || trace.tensor(*tensor.alias_of).alias_of) continue;
    tensor.offset = Bytes(draw(trace.tensor(*tensor.alias_of).size.count() + 1));
  }
  std::vector<TensorId> readable, scratch;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TensorId id{static_cast<uint32_t>(i)};
    const TensorKind kind = trace.tensor(trace.Root(id)).kind;
    if (kind == TensorKind::kInput || kind == TensorKind::kParameter) readable.push_back(id);
    if (kind == TensorKind::kScratch) scratch.push_back(id);
  }
  for (int64_t i = draw(20); i >= 0; --i) {
    Op op;
    op.name = name("op", i);
    op.layer = static_cast<LayerId>(draw(static_cast<int64_t>(trace.layers.size())));
    op.type = static_cast<OpType>(draw(15));
    op.phase = static_cast<Phase>(draw(3));
    op.recomputable = op.phase == Phase::kForward && draw(2) == 0;
    op.batch = 1 + draw(100);
    for (int64_t k = draw(4); k > 0 && !readable.empty(); --k) {
      op.inputs.push_back(readable[draw(static_cast<int64_t>(readable.size()))]);
    }
    for (int64_t k = draw(3); k > 0; --k)
      op.outputs.push_back(static_cast<TensorId>(draw(tensors)));
    if (draw(2) == 0 && !scratch.empty()) op.scratch.push_back(scratch.front());
    for (int64_t k = draw(3); k >= 0; --k) {
      op.slots.push_back({name("slot", k), name("signature", draw(9)), draw(int64_t{1} << 31),
                          Bytes(draw(int64_t{1} << 31))});
    }
    for (int64_t k = draw(4); k > 0; --k) {
      op.attributes.push_back({name("a", k), static_cast<double>(random()) / 1000});
    }
    trace.ops.push_back(op);
  }
  return trace;
}

TEST(FormatTest, RandomTracesRoundTripToIdenticalBytes) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const std::string text = FormatTrace(RandomTrace(seed));
    EXPECT_EQ(FormatTrace(ParseTrace(text, "t.json")), text) << "seed " << seed;
  }
}

// Every truncation gives an `InputError`. Random damage gives an `InputError` or a valid trace,
// never anything else.
TEST(FormatTest, EveryTruncationIsAnInputError) {
  for (size_t size = 0; size < kSmall.size(); ++size) {
    EXPECT_THAT(InputErrorOf([&] { ParseTrace(kSmall.substr(0, size), "t.json"); }),
                StartsWith("t.json:"))
        << size;
  }
}

TEST(FormatTest, RandomDamageNeverEscapes) {
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

TEST(FormatTest, DeepNestingIsAnInputError) {
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
  EXPECT_EQ(ErrorOfEdit("\"version\": 1", "\"version\": 7"),
            "t.json:2:40: version: unsupported version 7; this program reads version 1 to 6");
  EXPECT_EQ(ErrorOfEdit("\"format\": \"spillway-trace\", ", ""),
            "t.json:1:1: the key 'format' is missing");
  // The version is checked before any key that a later version may have added.
  EXPECT_THAT(ErrorOfEdit("\"version\": 1, \"name\"", "\"new\": {}, \"version\": 7, \"name\""),
              HasSubstr("unsupported version 7"));
}

TEST(FormatErrorTest, Keys) {
  EXPECT_EQ(
      ErrorOfEdit("\"alias_of\"", "\"aliasof\""),
      "t.json:7:66: tensors[1]: unknown key 'aliasof'; did you mean 'alias_of'? (valid: name, "
      "kind, shape, size, dtype, alias_of, part_of, offset, held_until, request, movable)");
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
      "training, recording, layers, tensors, ops, saved)");
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

// Returns `kSmall` as a recorded program of a framework, with `from` replaced by `to`.
std::string Recorded(std::string_view from = "", std::string_view to = "") {
  std::string text(kSmall);
  using Edit = std::pair<std::string_view, std::string_view>;
  for (const auto& [before, after] :
       {Edit{"\"version\": 1", "\"version\": 3"},
        Edit{"\"training\": true,",
             "\"training\": true,\n\"recording\": {\"framework\": \"PyTorch 2.11.0\", \"device\": "
             "\"NVIDIA H200\", \"step_ns\": 9, \"plain_step_ns\": 8, \"allocated\": 7, "
             "\"reserved\": 6},"},
        Edit{"\"shape\": [2, 3], \"size\": 24}",
             "\"shape\": [2, 3], \"size\": 24, \"held_until\": \"m.fwd\"}"},
        Edit{"\"recomputable\": true}",
             "\"recorded\": {\"time_ns\": 5, \"gap_ns\": 4, \"host_ns\": 3, \"workspace\": 2}},\n"
             "{\"name\": \"m.fwd\", \"layer\": \"l\", \"type\": \"relu\", \"phase\": \"forward\", "
             "\"batch\": 2, \"inputs\": [], \"outputs\": [], \"slots\": [{\"name\": \"fwd\", "
             "\"signature\": \"s\", \"flops\": 0, \"traffic\": 0}], \"recorded\": {\"time_ns\": 0, "
             "\"gap_ns\": 0, \"host_ns\": 0, \"workspace\": 0}}"},
        Edit{from, to}}) {
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    text.replace(at, before.size(), after);
  }
  return text;
}

TEST(FormatTest, RecordedTraces) {
  const Trace trace = ParseTrace(Recorded(), "t.json");
  EXPECT_EQ(trace.recording, (Recording{"PyTorch 2.11.0", "NVIDIA H200", Duration::Nanoseconds(9),
                                        Duration::Nanoseconds(8), Bytes(7), Bytes(6)}));
  EXPECT_EQ(trace.ops[0].recorded, (RecordedCost{Duration::Nanoseconds(5), Duration::Nanoseconds(4),
                                                 Duration::Nanoseconds(3), Bytes(2)}));
  EXPECT_EQ(trace.tensors[0].held_until, OpId{1});
  EXPECT_EQ(trace.tensors[1].held_until, std::nullopt);
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 3"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
  EXPECT_EQ(FormatTrace(ParseTrace(Shuffled(Recorded()), "t.json")), text);
}

// Returns `Recorded()` with the requests before the first iteration, of which tensor x is one.
std::string WithRequests(const std::string& requests = "[[30, 1], [24, -1]]",
                         const std::string& request = "1", int version = 5) {
  std::string text = Recorded("\"version\": 3", fmt::format("\"version\": {}", version));
  for (const auto& [before, after] :
       {std::pair<std::string, std::string>{
            "\"reserved\": 6", fmt::format("\"reserved\": 6, \"requests\": {}", requests)},
        {"\"held_until\": \"m.fwd\"",
         fmt::format("\"held_until\": \"m.fwd\", \"request\": {}", request)}}) {
    text.replace(text.find(before), before.size(), after);
  }
  return text;
}

TEST(FormatTest, RequestsBeforeTheFirstIteration) {
  const Trace trace = ParseTrace(WithRequests(), "t.json");
  EXPECT_THAT(trace.recording->requests,
              ElementsAre(SetupRequest{Bytes(30), 1}, SetupRequest{Bytes(24)}));
  EXPECT_EQ(trace.tensors[0].request, 1u);
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 5"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
}

TEST(FormatTest, TensorsThatMayNotMove) {
  Trace trace = ParseTrace(Recorded(), "t.json");
  EXPECT_TRUE(trace.tensors[0].movable);
  trace.tensors[0].movable = false;
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 5"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
}

// Returns `Recorded()` with saved tensors.
std::string WithSaved(const std::string& saved, int version = 6) {
  std::string text = Recorded("\"version\": 3", fmt::format("\"version\": {}", version));
  const size_t end = text.rfind('}');
  return text.insert(end, fmt::format(",\n\"saved\": {}", saved));
}

// Returns `RandomTrace` as a recorded program with random saved tensors, some of which may move
// although the default says no, and the other way round.
Trace RandomSaved(uint32_t seed) {
  std::mt19937 random(seed);
  Trace trace = RandomTrace(seed);
  trace.recording.emplace();
  for (Op& op : trace.ops) op.recorded.emplace();
  const auto draw = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
  for (uint32_t packed = 0; packed <= trace.ops.size(); ++packed) {
    if (draw(2) == 0) continue;
    KeptForBackward kept{static_cast<TensorId>(draw(trace.tensors.size())), packed};
    for (uint32_t at = packed; at <= trace.ops.size(); ++at) {
      if (draw(4) == 0) kept.unpacked.push_back(at);
    }
    trace.saved.push_back(kept);
  }
  const std::vector<bool> movable = trace.MovableByDefault();
  for (size_t i = 0; i < movable.size(); ++i) trace.tensors[i].movable = movable[i] != !draw(4);
  return trace;
}

TEST(FormatTest, SavedTensorsRoundTrip) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Trace trace = RandomSaved(seed);
    const std::string text = FormatTrace(trace);
    EXPECT_EQ(ParseTrace(text, "t.json"), trace) << "seed " << seed;
    EXPECT_EQ(FormatTrace(ParseTrace(text, "t.json")), text) << "seed " << seed;
  }
}

TEST(FormatTest, OnlySavedTensorsMoveByDefault) {
  const std::string saved = R"([{"tensor": "y", "packed": 1, "unpacked": [1, 2]}])";
  const Trace trace = ParseTrace(WithSaved(saved), "t.json");
  EXPECT_THAT(trace.saved, ElementsAre(KeptForBackward{TensorId{1}, 1, {1, 2}}));
  EXPECT_TRUE(trace.tensors[0].movable);  // the storage of y
  EXPECT_THAT(FormatTrace(trace), HasSubstr("\"version\": 6"));
  EXPECT_EQ(ParseTrace(Shuffled(WithSaved(saved)), "t.json"), trace);
  Trace other = trace;
  other.tensors.push_back({"z", TensorKind::kActivation, {}, Bytes(1)});
  other.tensors.push_back({"w", TensorKind::kParameter, {}, Bytes(1)});
  EXPECT_THAT(other.MovableByDefault(), ElementsAre(true, true, true, false, true));
  other.saved.clear();
  EXPECT_THAT(other.MovableByDefault(), ElementsAre(true, true, true, true, true));
}

TEST(FormatErrorTest, SavedTensors) {
  struct Case {
    const char* saved;
    const char* error;
  };
  for (const Case& test : {
           Case{R"([{"tensor": "v", "packed": 0, "unpacked": []}])",
                "t.json:16:22: saved[0].tensor: there is no tensor 'v'"},
           Case{R"([{"tensor": "y", "packed": -1, "unpacked": []}])", "saved[0].packed: expected"},
           Case{R"([{"tensor": "y", "packed": 0, "unpacked": [0.5]}])",
                "saved[0].unpacked[0]: exp"},
           Case{R"([{"tensor": "y", "packed": 0}])", "saved[0]: the key 'unpacked' is missing"},
           Case{R"([{"tensor": "y", "packed": 0, "unpacked": [], "at": 1}])", "unknown key 'at'"},
           Case{R"({"tensor": "y", "packed": 0, "unpacked": []})", "saved: expected an array"},
           Case{R"([{"tensor": "y", "packed": 3, "unpacked": []}])",
                "t.json: trace 'n:2': saved[0], tensor 'y': packed at 3, expected 0 to 2"},
           Case{R"([{"tensor": "y", "packed": 1, "unpacked": [0]}])",
                "saved[0], tensor 'y': unpacked at 0, expected 1 to 2"},
           Case{R"([{"tensor": "y", "packed": 1, "unpacked": [3]}])", "unpacked at 3, expected"},
           Case{R"([{"tensor": "y", "packed": 1, "unpacked": [1, 1]}])",
                "saved[0], tensor 'y': unpacked at 1, expected 2 to 2"},
           Case{R"([{"tensor": "y", "packed": 1, "unpacked": []},
                    {"tensor": "x", "packed": 0, "unpacked": []}])",
                "saved[1], tensor 'x': packed at 0, but the one before it at 1"},
           Case{R"([{"tensor": "y", "packed": 1, "unpacked": []},
                    {"tensor": "y", "packed": 1, "unpacked": [2]}])",
                "saved[1], tensor 'y': packed twice at 1"},
       }) {
    EXPECT_THAT(InputErrorOf([&] { ParseTrace(WithSaved(test.saved), "t.json"); }),
                HasSubstr(test.error))
        << test.saved;
  }
  EXPECT_THAT(InputErrorOf([] { ParseTrace(WithSaved("[]", 5), "t.json"); }),
              HasSubstr("the key 'saved' needs version 6 of the format"));
  Trace lowered = ParseTrace(kSmall, "t.json");
  lowered.saved.push_back({TensorId{0}});
  EXPECT_THAT(InputErrorOf([&] { lowered.Validate(); }), HasSubstr("belong to a recording"));
}

TEST(FormatErrorTest, RequestsBeforeTheFirstIteration) {
  const auto error = [](const std::string& requests, const std::string& request) {
    return InputErrorOf([&] { ParseTrace(WithRequests(requests, request), "t.json"); });
  };
  EXPECT_THAT(error("[[30]]", "0"), HasSubstr("expected two numbers: size, freed"));
  EXPECT_THAT(error("[[30, 1, 2]]", "0"), HasSubstr("expected two numbers: size, freed"));
  EXPECT_THAT(error("[[-1, 1]]", "0"), HasSubstr("requests[0][0]"));
  EXPECT_THAT(error("[[30, 0]]", "0"), HasSubstr("freed after 0 requests, expected 1 to 1"));
  EXPECT_THAT(error("[[30, 2]]", "0"), HasSubstr("freed after 2 requests, expected 1 to 1"));
  EXPECT_THAT(error("[[1152921504606846975, -1], [9, -1]]", "1"), HasSubstr("exceed 2^60"));
  EXPECT_THAT(error("[[30, 1]]", "0"), HasSubstr("tensor 'x' names request 0"));
  EXPECT_THAT(error("[[30, -1]]", "1"), HasSubstr("tensor 'x' names request 1"));
  EXPECT_THAT(InputErrorOf([] { ParseTrace(WithRequests("[]", "0", 4), "t.json"); }),
              HasSubstr("needs version 5 of the format"));
}

// Readers of older versions do not know these keys.
TEST(FormatErrorTest, KeysOfRecordedTracesNeedTheirVersion) {
  EXPECT_THAT(ErrorOfEdit("\"size\": 24}", "\"size\": 24, \"held_until\": \"l.fwd\"}"),
              HasSubstr("the key 'held_until' needs version 3 of the format"));
  EXPECT_THAT(ErrorOfEdit("\"recomputable\": true", "\"recorded\": {}"),
              HasSubstr("the key 'recorded' needs version 3 of the format"));
  EXPECT_THAT(ErrorOfEdit("\"training\": true,", "\"training\": true, \"recording\": {},"),
              HasSubstr("the key 'recording' needs version 3 of the format"));
  EXPECT_THAT(
      InputErrorOf([] { ParseTrace(Recorded("\"version\": 3", "\"version\": 2"), "t.json"); }),
      HasSubstr("needs version 3 of the format"));
}

TEST(FormatErrorTest, RecordedTraces) {
  struct Case {
    const char* from;
    const char* to;
    const char* error;
  };
  for (const Case& test : {
           Case{"\"m.fwd\"}", "\"n.fwd\"}",
                "t.json:7:75: tensors[0].held_until: there is no op 'n.fwd'"},
           Case{"\"m.fwd\"}", "5}", "tensors[0].held_until: expected a string"},
           Case{"\"inputs\": []", "\"inputs\": [\"x\"]", ""},  // its last use may be that op
           Case{"\"held_until\": \"m.fwd\"", "\"held_until\": \"l.fwd\"", ""},
           Case{"\"alias_of\": \"x\"", "\"alias_of\": \"x\", \"held_until\": \"m.fwd\"",
                "tensor 'y' has held_until, but shares the storage of 'x'"},
           Case{"\"time_ns\": 5", "\"time_ns\": -5", "ops[0].recorded.time_ns: expected"},
           Case{"\"gap_ns\": 4, ", "", "ops[0].recorded"},
           Case{"\"step_ns\": 9, ", "", "recording"},
           Case{"\"time_ns\": 5", "\"time_ns\": 4611686018427387", "exceed 53 days"},
       }) {
    SCOPED_TRACE(test.to);
    if (*test.error == '\0') {
      EXPECT_NO_THROW(ParseTrace(Recorded(test.from, test.to), "t.json"));
    } else {
      EXPECT_THAT(InputErrorOf([&] { ParseTrace(Recorded(test.from, test.to), "t.json"); }),
                  HasSubstr(test.error));
    }
  }
}

TEST(FormatErrorTest, NamesThePath) {
  const TemporaryDirectory directory;
  WriteFile(directory / "bad.json.zst", Edited("\"size\": 24", "\"size\": -1"));
  const std::string path = (directory / "bad.json.zst").string();
  EXPECT_THAT(InputErrorOf([&] { ReadTrace(path); }),
              StartsWith(path + ":6:57: tensors[0].size: expected an integer"));
}

}  // namespace
}  // namespace spillway
