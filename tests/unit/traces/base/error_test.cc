#include "traces/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::testing {
namespace {

const std::vector<std::string> kPolicies{"none", "vdnn-all", "vdnn-conv", "vdnn-dyn"};

TEST(ErrorTest, SuggestsTheClosestName) {
  EXPECT_EQ(UnknownName("policy", "vdn-all", kPolicies),
            "unknown policy 'vdn-all'; did you mean 'vdnn-all'? (valid: none, vdnn-all, vdnn-conv, "
            "vdnn-dyn)");
  EXPECT_EQ(UnknownName("policy", "nome", kPolicies),
            "unknown policy 'nome'; did you mean 'none'? (valid: none, vdnn-all, vdnn-conv, "
            "vdnn-dyn)");
}

TEST(ErrorTest, WordsMayBeShortenedOrInAnotherOrder) {
  const std::vector<std::string> options{"--export-memory", "--memory", "--export-trace",
                                         "--policy"};
  const auto suggests = [&](const char* name, const std::string& option) {
    return UnknownName("option", name, options).find("did you mean '" + option + "'?") !=
           std::string::npos;
  };
  EXPECT_TRUE(suggests("--mem-limit", "--memory"));
  EXPECT_TRUE(suggests("--memory-limit", "--memory"));
  EXPECT_TRUE(suggests("--memory-export", "--export-memory"));
  EXPECT_TRUE(suggests("--export-mem", "--export-memory"));
  EXPECT_TRUE(suggests("--trace_export", "--export-trace"));
  EXPECT_TRUE(suggests("--export-traces", "--export-trace"));
  EXPECT_TRUE(suggests("--plicy", "--policy"));
  EXPECT_EQ(UnknownName("option", "--me", options).find("did you mean"), std::string::npos);
}

TEST(ErrorTest, SuggestsNothingFarAway) {
  EXPECT_EQ(UnknownName("policy", "lru", kPolicies),
            "unknown policy 'lru' (valid: none, vdnn-all, vdnn-conv, vdnn-dyn)");
  EXPECT_EQ(UnknownName("policy", "", kPolicies),
            "unknown policy '' (valid: none, vdnn-all, vdnn-conv, vdnn-dyn)");
}

TEST(ErrorTest, FirstOfEquallyCloseNames) {
  EXPECT_EQ(UnknownName("key", "h3d", {"h2d", "d2h", "h4d"}),
            "unknown key 'h3d'; did you mean 'h2d'? (valid: h2d, d2h, h4d)");
}

TEST(ErrorTest, ControlCharactersAreSpelled) {
  EXPECT_EQ(Printable("a\x1b[1m\tb\n\x7f"), "a\\x1b[1m\tb\n\\x7f");
  EXPECT_EQ(Printable("a\rb\r\n"), "a\\x0db\r\n");
  EXPECT_EQ(Printable("\xc2\x9b \xc2\xa0\xc3\xa9"), "\\x9b \xc2\xa0\xc3\xa9");
}

TEST(ErrorTest, NothingIsValid) {
  EXPECT_EQ(UnknownName("plugin", "x", {}), "unknown plugin 'x' (there are none)");
}

TEST(ErrorDeathTest, CheckNamesPlaceAndCondition) {
  const int one = 1;
  EXPECT_DEATH(SPILLWAY_CHECK(one == 2),
               "error_test.cc:[0-9]+: internal error, check failed: one == 2");
  SPILLWAY_CHECK(one == 1);
}

}  // namespace
}  // namespace spillway::testing
