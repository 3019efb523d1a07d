// Tests of the grammar of several values: commas, parameters and braces.

#include "experiments/run/pattern.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/files.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

std::vector<std::string> Texts(const std::string& text) {
  const Pattern pattern(text);
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < pattern.size(); ++i) texts.push_back(pattern.at(i));
  return texts;
}

TEST(PatternTest, StandsForEveryCombination) {
  const struct {
    const char* text;
    std::vector<std::string> texts;
  } kCases[] = {
      {"vgg16:64", {"vgg16:64"}},
      {"a:{16,32,64..96..32}", {"a:16", "a:32", "a:64", "a:96"}},
      {"{a,b}:{1..2}", {"a:1", "a:2", "b:1", "b:2"}},
      {"r(3,{4..9..4},3)", {"r(3,4,3)", "r(3,8,3)"}},
      {"{a,r({1,2},3)}", {"a", "r(1,3)", "r(2,3)"}},
      {"{a,{b,c}}{0..0}", {"a0", "b0", "c0"}},
      {"{x=[1,2],y}", {"x=[1,2]", "y"}},
      {"{a:x=1,y=2,b}", {"a:x=1,y=2", "b"}},
      {"a:{x=1,x=2}", {"a:x=1", "a:x=2"}},
  };
  for (const auto& [text, texts] : kCases) EXPECT_EQ(Texts(text), texts) << text;
}

TEST(PatternTest, ParametersBelongToTheSpecificationBeforeThem) {
  using Values = std::vector<std::string>;
  const std::pair<Values, Values> kCases[] = {
      {{"a,b:x=1,y=[2,3],c"}, {"a", "b:x=1,y=[2,3]", "c"}},
      {{"h200,memory=24GiB"}, {"h200:memory=24GiB"}},
      {{"./p.so:name,x=1,y=2"}, {"./p.so:name:x=1,y=2"}},
      {{"a", "x=1"}, {"a", "x=1"}},  // the next argument is not a part of this one
      {{"a:x=1,b:y=2"}, {"a:x=1", "b:y=2"}},
      {{"r(3,4):8,vgg16:{8,16}"}, {"r(3,4):8", "vgg16:8", "vgg16:16"}},
      {{"out/a=1.json,out/b=2.json"}, {"out/a=1.json", "out/b=2.json"}},
      {{""}, {""}},
  };
  for (const auto& [texts, values] : kCases) EXPECT_EQ(ExpandSpecifications(texts), values);
}

// However a list is spelled, its values are the same.
TEST(PatternTest, EverySpellingOfAListHasTheSameValues) {
  std::mt19937 random(1);
  const auto draw = [&](size_t end) { return random() % end; };
  const auto specification = [&] {
    constexpr const char* kNames[] = {"a", "vdnn-all", "r(3,x,6):16", "./p.so:b", "50%"};
    constexpr const char* kValues[] = {"wd", "1GiB", "[256:1,>:4]", "a:b", "0.5"};
    std::string text = kNames[draw(5)];
    const size_t parameters = draw(4);
    for (size_t i = 0; i < parameters; ++i) {
      text += fmt::format("{}k{}={}", i == 0 ? ':' : ',', i, kValues[draw(5)]);
    }
    return text;
  };
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<std::string> values(1 + draw(5));
    for (std::string& value : values) value = specification();
    const std::string joined = fmt::format("{}", fmt::join(values, ","));
    EXPECT_EQ(ExpandSpecifications(values), values);
    EXPECT_EQ(ExpandSpecifications({joined}), values);
    EXPECT_EQ(ExpandSpecifications({fmt::format("{{{}}}", joined)}), values);
    std::string mixed = values.front();
    for (size_t i = 1; i < values.size(); ++i) {
      mixed += draw(2) == 0 ? "," + values[i] : fmt::format(",{{{}}}", values[i]);
    }
    EXPECT_EQ(ExpandSpecifications({mixed}), values);
  }
}

TEST(PatternTest, TheNameOfAFileIsOneValue) {
  const testing::TemporaryDirectory directory;
  const std::string path = (directory / "a,b={1}.json").string();
  testing::WriteRaw(path, "");
  EXPECT_EQ(ExpandSpecifications({path, "c,d"}), (std::vector<std::string>{path, "c", "d"}));
}

TEST(PatternTest, ManyTextsTakeNoMemory) {
  const Pattern pattern("{1..100000}{1..100000}{1..100}");
  EXPECT_EQ(pattern.size(), 1'000'000'000'000);
  EXPECT_EQ(pattern.at(pattern.size() - 1), "100000100000100");
}

TEST(PatternTest, BadBracesAreUsageErrors) {
  for (const char* text :
       {"{", "}", "{}", "{1,}", "{,1}", "{1..}", "{2..1}", "{1..2..0}", "{a..b}", "{1..2}}", "{{1}",
        "{1..1000001}", "{-2..1}", "{1..1000000}{1..1000000}{1..1000000}"}) {
    EXPECT_THROW(Pattern{text}, UsageError) << text;
  }
  for (const char* text : {",", "a,", ",a", "a,,b", "{1..1000}{1..1001}"}) {
    EXPECT_THROW(ExpandSpecifications({text}), UsageError) << text;
  }
}

}  // namespace
}  // namespace spillway::testing
