// Tests of texts with alternatives in braces.

#include "experiments/tools/sweep/pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "traces/base/error.h"

namespace spillway {
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
  };
  for (const auto& [text, texts] : kCases) EXPECT_EQ(Texts(text), texts) << text;
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
}

}  // namespace
}  // namespace spillway
