#include "traces/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "tests/testing/files.h"
#include "tests/unit/traces/format_cases.h"
#include "traces/base/file.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::Edited;
using ::spillway::testing::InputErrorOf;
using ::spillway::testing::kSmall;
using ::spillway::testing::RandomTrace;
using ::spillway::testing::Shuffled;
using ::spillway::testing::TemporaryDirectory;
using ::testing::HasSubstr;

// Returns the `index`-th JSON block of the specification.
std::string ExampleOfSpecification(int index) {
  const std::string text = ReadFile(testing::InSource("traces/FORMAT.md"));
  size_t begin = 0;
  for (int i = 0; i <= index; ++i) begin = text.find("```json\n", begin) + 8;
  return text.substr(begin, text.find("```", begin) - begin);
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

TEST(FormatTest, RandomTracesRoundTripToIdenticalBytes) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const std::string text = FormatTrace(RandomTrace(seed));
    EXPECT_EQ(FormatTrace(ParseTrace(text, "t.json")), text) << "seed " << seed;
  }
}

}  // namespace
}  // namespace spillway::testing
