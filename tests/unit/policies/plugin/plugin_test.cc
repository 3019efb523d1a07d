#include "policies/plugin/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "policies/plugin/guard.h"
#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "tests/testing/files.h"
#include "tests/testing/fixtures.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool operator==(const PolicySpec& a, const PolicySpec& b) {
  return a.plugin == b.plugin && a.policy == b.policy && a.parameters == b.parameters;
}

TEST(PolicySpecTest, IsTakenApartBySpellingAlone) {
  EXPECT_TRUE(ParsePolicySpec("p") == (PolicySpec{"", "p", ""}));
  EXPECT_TRUE(ParsePolicySpec("p:k=v,l=w") == (PolicySpec{"", "p", "k=v,l=w"}));
  EXPECT_TRUE(ParsePolicySpec("p:file=/a/b.so:c") == (PolicySpec{"", "p", "file=/a/b.so:c"}));
  EXPECT_TRUE(ParsePolicySpec("a.so") == (PolicySpec{"a.so", "", ""}));
  EXPECT_TRUE(ParsePolicySpec("./a.so:p") == (PolicySpec{"./a.so", "p", ""}));
  EXPECT_TRUE(ParsePolicySpec("./a.so:k=v") == (PolicySpec{"./a.so", "", "k=v"}));
  EXPECT_TRUE(ParsePolicySpec("/d/a.so:p:k=v:w") == (PolicySpec{"/d/a.so", "p", "k=v:w"}));
  EXPECT_TRUE(ParsePolicySpec("d/a:help") == (PolicySpec{"d/a", "help", ""}));
  EXPECT_TRUE(ParsePolicySpec("") == PolicySpec{});
}

TEST(PolicyLibraryTest, MakesBuiltInPoliciesAsTheRegistryDoes) {
  PolicyLibrary library;
  EXPECT_NE(library.Make("vdnn-all:algo=memory"), nullptr);
  EXPECT_THROW(library.Make("vdnn-al"), UsageError);
  EXPECT_THROW(library.Make("vdnn-all:algo=none"), UsageError);
  EXPECT_EQ(library.Parameters({}, "vdnn-all").size(), 3u);
}

TEST(PolicyLibraryTest, ThePolicyOutlivesIt) {
  const std::unique_ptr<Policy> policy = PolicyLibrary().Make("vdnn-all");
  EXPECT_TRUE(RunSim(ChainTrace(), FixedCost(), *policy).report.fits());
}

TEST(PluginTest, WhatIsNoPluginIsBadInput) {
  const auto reason = [](const std::string& path) {
    try {
      Plugin::Load(path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  EXPECT_THAT(reason("nowhere/at-all.so"), HasSubstr("nowhere/at-all.so: cannot load the plugin"));
  EXPECT_THAT(reason(testing::InSource("").string()), HasSubstr("cannot load"));
  EXPECT_THAT(reason(testing::InSource("README.md").string()), HasSubstr("cannot load"));
}

TEST(PluginTest, BuildTagNamesCompilerLibraryAndVersion) {
  EXPECT_THAT(kBuildTag, HasSubstr("++ "));
  EXPECT_THAT(kBuildTag, HasSubstr("lib"));
  EXPECT_THAT(kBuildTag, HasSubstr("Spillway " SPILLWAY_VERSION_STRING));
}

// A policy that throws a given exception in one hook, or breaks one rule.
class Faulty final : public Policy {
 public:
  enum class Fault { kPlan, kForeign, kOwn, kMisfit, kSwallowed, kTensor, kHint, kRoom };
  explicit Faulty(Fault fault) : fault_(fault) {}

  void Plan(PolicyContext& context) override {
    if (fault_ == Fault::kPlan) throw std::out_of_range("the end");
    if (fault_ == Fault::kMisfit) context.ReserveWorkspace(Bytes(1'000'000));
    if (fault_ == Fault::kSwallowed) {
      try {
        context.ReserveWorkspace(Bytes(1'000'000));
      } catch (...) {
      }
      throw 7;
    }
  }
  void BeforeLaunch(PolicyContext&, OpId op) override {
    if (fault_ == Fault::kForeign && op == OpId{1}) throw 42;
    if (fault_ == Fault::kOwn) throw InputError("profile.txt: not there");
  }
  void AfterOp(PolicyContext& context, OpId) override {
    if (fault_ == Fault::kTensor) context.Evict(TensorId{4711});
  }
  Hint PlacementHint(const PolicyContext&, TensorId) override {
    if (fault_ == Fault::kHint) throw std::runtime_error("no end");
    return Hint::kLow;
  }
  bool OnAllocFailure(PolicyContext&, Bytes) override {
    if (fault_ == Fault::kRoom) throw std::runtime_error("no room");
    return false;
  }

 private:
  const Fault fault_;
};

std::string PolicyErrorOf(Faulty::Fault fault, Bytes memory = Bytes(1000)) {
  GuardedPolicy policy("faulty", std::make_unique<Faulty>(fault));
  RunSettings settings;
  settings.memory = memory;
  try {
    RunSim(ChainTrace(), FixedCost(), policy, settings);
  } catch (const PolicyError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GuardTest, ExceptionsNamePolicyHookAndOp) {
  using Fault = Faulty::Fault;
  EXPECT_EQ(PolicyErrorOf(Fault::kPlan), "policy 'faulty', Plan failed: the end");
  EXPECT_THAT(PolicyErrorOf(Fault::kForeign),
              HasSubstr("policy 'faulty', BeforeLaunch(f2) failed"));
  EXPECT_THAT(PolicyErrorOf(Fault::kHint),
              HasSubstr("PlacementHint(x) before the first op failed"));
  EXPECT_EQ(PolicyErrorOf(Fault::kRoom, Bytes(25)),
            "policy 'faulty', OnAllocFailure(10 B) at op f2 failed: no room");
}

TEST(GuardTest, SpillwaysOwnErrorsKeepTheirKind) {
  GuardedPolicy policy("faulty", std::make_unique<Faulty>(Faulty::Fault::kOwn));
  EXPECT_THROW(RunSim(ChainTrace(), FixedCost(), policy), InputError);
}

TEST(GuardTest, TensorsThatDoNotExistAreCaught) {
  EXPECT_THAT(PolicyErrorOf(Faulty::Fault::kTensor), HasSubstr("evict: tensor 4711"));
}

TEST(GuardTest, ARunThatDoesNotFitIsNoError) {
  GuardedPolicy policy("faulty", std::make_unique<Faulty>(Faulty::Fault::kMisfit));
  RunSettings settings;
  settings.memory = Bytes(1000);
  EXPECT_FALSE(RunSim(ChainTrace(), FixedCost(), policy, settings).report.fits());
  // The guard passes the runtime's own exception on, but no other exception thrown after it.
  EXPECT_THAT(PolicyErrorOf(Faulty::Fault::kSwallowed), HasSubstr("Plan failed"));
}

TEST(GuardTest, ChangesNothing) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  for (const char* name : {"network-wide", "vdnn-all", "vdnn-dyn"}) {
    const auto bare = registry.Make(name);
    GuardedPolicy guarded(name, registry.Make(name));
    const auto expected = RunSim(ChainTrace(), FixedCost(), *bare);
    const auto actual = RunSim(ChainTrace(), FixedCost(), guarded);
    EXPECT_EQ(actual.report.decisions, expected.report.decisions);
    EXPECT_EQ(actual.report.timeline, expected.report.timeline);
    EXPECT_THAT(actual.violations, IsEmpty());
  }
}

TEST(GuardTest, ThePluginIsHeldUntilAfterThePolicy) {
  std::vector<std::string> log;
  struct Logs final : Policy {
    explicit Logs(std::vector<std::string>& out) : log(out) {}
    ~Logs() override { log.push_back("policy"); }
    std::vector<std::string>& log;
  };
  {
    const std::shared_ptr<const void> plugin(&log, [&](const void*) { log.push_back("plugin"); });
    GuardedPolicy policy("logs", std::make_unique<Logs>(log), plugin);
  }
  EXPECT_EQ(log, (std::vector<std::string>{"policy", "plugin"}));
}

TEST(RegistryTest, ANameStandsForOnePolicy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  EXPECT_THROW(RegisterBuiltinPolicies(registry), InputError);
}

}  // namespace
}  // namespace spillway::testing
