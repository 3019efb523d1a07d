// Tests of cases and their inputs: the values of keys, the files that are read, and what is shared.

#include "experiments/run/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/case_keys.h"
#include "experiments/run/data_files.h"
#include "experiments/run/prepare.h"
#include "experiments/run/workload_text.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class InputsTest : public ::testing::Test {
 protected:
  const std::shared_ptr<const Trace> trace_ = std::make_shared<const Trace>(
      LowerNetwork(BuildNetwork("constructed(2)"), {2, "torch", true}));
  Case asked_;
};

TEST_F(InputsTest, TakesEverythingFromTheCase) {
  for (const auto& [key, text] : {std::pair("device", "titan_x_maxwell"),
                                  {"memory", "100%"},
                                  {"allocator", "first-fit"},
                                  {"cost", "roofline"},
                                  {"compress", "all:density=0.5"},
                                  {"deterministic", "true"},
                                  {"charge-input", "true"}}) {
    CaseKeyOf(key).set(asked_, text);
    EXPECT_EQ(CaseKeyOf(key).get(asked_), text);
  }
  asked_.iterations = 3;
  const Inputs inputs(asked_, trace_);
  EXPECT_EQ(inputs.device().name, "titan_x_maxwell");
  EXPECT_THAT(inputs.cost()->Provenance(), HasSubstr("deterministic"));
  const Draft draft = inputs.DraftOf(asked_);
  EXPECT_EQ(draft.memory,
            RoundUp(inputs.IdealOf(asked_).metrics.peak_reserved, draft.device.alignment));
  EXPECT_EQ(draft.arena.name(), "first-fit");
  EXPECT_TRUE(draft.options.charge_input);
  EXPECT_EQ(draft.options.iterations, 3);
  EXPECT_EQ(draft.compression, nullptr);
  const Prepared prepared = Prepare(asked_, inputs);
  EXPECT_EQ(prepared.run.compression->density, 0.5);
  EXPECT_TRUE(lab::Run(prepared).report.fits());
}

TEST_F(InputsTest, BadTextsAreUsageErrors) {
  for (const char* key : {"device", "pool", "memory", "allocator", "cost", "compress"}) {
    const auto load = [&] {
      Case asked;
      CaseKeyOf(key).set(asked, "nonsense");
      const Inputs inputs(asked, trace_);
    };
    EXPECT_THROW(load(), UsageError) << key;
  }
}

// Two ops of a recorded step: one of 3 operators, and one of unknown number.
Trace RecordedStep(const std::string& gpu) {
  Trace trace = LowerNetwork(BuildNetwork("constructed(2)"), {2, "torch", true});
  trace.recording = {"PyTorch", gpu, Duration(), Duration(), Bytes(), Bytes()};
  for (Op& op : trace.ops) {
    op.slots.resize(1);
    op.attributes.clear();
    op.recorded = {Duration(), Duration(), Duration::Microseconds(50), Bytes()};
  }
  trace.ops[0].attributes = {{"operators", 3}};
  return trace;
}

TEST(HostTimesTest, OfARecordingWithTimes) {
  const auto hosts = [](const std::string& text) {
    Case asked;
    SetWorkload(asked, "step.json,host=" + text);
    const Trace trace = WithHostTimes(RecordedStep("NVIDIA H200"), asked.host);
    return std::pair(trace.ops[0].recorded->host, trace.ops[1].recorded->host);
  };
  const Duration recorded = Duration::Microseconds(50);
  EXPECT_EQ(hosts("plain"), std::pair(Duration::Microseconds(21), recorded));
  EXPECT_EQ(hosts("5us"), std::pair(Duration::Microseconds(15), recorded));
  EXPECT_EQ(hosts("1ms"), std::pair(recorded, recorded));
  EXPECT_EQ(hosts("recorded"), std::pair(recorded, recorded));
  EXPECT_EQ(hosts("none"), std::pair(Duration(), Duration()));
}

// Each op of a recording without a GPU is an operator for which the host takes its time, unless its
// attribute says that it is as long as several.
TEST(HostTimesTest, OfARecordingWithoutAGpu) {
  Trace step = RecordedStep("");
  const auto host = [&step](const HostTimes& times) {
    return WithHostTimes(step, times).ops[1].recorded->host;
  };
  step.ops[1].recorded->host = Duration::Microseconds(30);  // as calibrate-host measured it
  EXPECT_EQ(host({}), Duration::Microseconds(30));
  step.ops[1].recorded->host = Duration();
  EXPECT_EQ(host({}), Duration::Microseconds(7));
  EXPECT_EQ(host({HostTimes::Kind::kPlain, Duration::Microseconds(2)}), Duration::Microseconds(2));
  EXPECT_EQ(host({HostTimes::Kind::kNone}), Duration());
  step.ops[1].attributes = {{"operators", 14}};
  EXPECT_EQ(host({}), Duration::Microseconds(98));
  EXPECT_EQ(host({HostTimes::Kind::kPlain, Duration::Microseconds(2)}), Duration::Microseconds(28));
  // Only one of the 14 operators launches a kernel; the others take 7 us where launches are slow.
  EXPECT_EQ(host({HostTimes::Kind::kPlain, Duration::Microseconds(40)}),
            Duration::Microseconds(40 + 13 * 7));
}

TEST(HostTimesTest, AreAssumedIfNoneWasMeasuredOrGiven) {
  const auto assumed = [](Trace trace, const HostTimes& times) {
    return WithHostTimes(std::move(trace), times).recording->host_assumed;
  };
  Trace step = RecordedStep("");
  EXPECT_FALSE(assumed(step, {}));  // as calibrate-host measured it
  for (Op& op : step.ops) op.recorded->host = Duration();
  EXPECT_TRUE(assumed(step, {}));
  EXPECT_FALSE(assumed(step, {HostTimes::Kind::kPlain, Duration::Microseconds(20)}));
  EXPECT_FALSE(assumed(step, {HostTimes::Kind::kNone}));
  EXPECT_FALSE(assumed(RecordedStep("NVIDIA H200"), {}));
}

TEST_F(InputsTest, SayWhichFilesWereRead) {
  asked_.workload = "vgg16:96";
  std::vector<std::string> names;
  const Inputs inputs(asked_);
  for (const InputFile& file : inputs.read()) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("vgg16:96", "sim/devices/h200.toml",
                                 "traces/recorded/h200/vgg16-96.json.zst",
                                 "traces/recorded/h200/vgg16-64.json.zst",
                                 "traces/recorded/h200/vgg16-128.json.zst"));
}

TEST_F(InputsTest, CasesThatFollowOneAnotherShareThem) {
  InputCache cache;
  Case asked{"alexnet:2"};
  const auto first = cache.Of(asked);
  asked.memory = "50%";
  asked.policy = "vdnn-all";
  asked.allocator = "first-fit";
  asked.charge_input = true;
  EXPECT_EQ(cache.Of(asked), first);
  asked.device = "k40c";
  const auto other = cache.Of(asked);
  EXPECT_NE(other, first);
  EXPECT_EQ(other->Get()->trace(), first->Get()->trace());
}

TEST(CaseTest, ItsCommandHasWhatIsNotTheDefault) {
  Case asked{"vgg16:64", "torch", true};
  EXPECT_EQ(CommandOf(asked), "vgg16:64 --policy liveness");
  for (const CaseKey& key : CaseKeys()) {
    if (key.kind != CaseKey::Kind::kFlag && *key.initial != 0) key.set(asked, key.initial);
  }
  EXPECT_EQ(CommandOf(asked), "vgg16:64 --policy liveness");
  asked.memory = "50%";
  asked.pools = {"peer:size=1GiB", "nvme:size=1TiB"};
  asked.check = true;
  EXPECT_EQ(CommandOf(asked),
            "vgg16:64 --pool peer:size=1GiB --pool nvme:size=1TiB --memory 50% --check --policy "
            "liveness");
}

class TriesItself final : public Policy {
  Preparation Prepare(const Trace&, const Device& device, const CostModel&, const TrialRun& trial,
                      const std::string&) override {
    trial(*this, device.memory);
    return {device.memory};
  }
};

TEST_F(InputsTest, ErrorsSayWhosePolicyFailed) {
  asked_.policy = {"mine", [] { return std::make_unique<TriesItself>(); }};
  try {
    RunCase(asked_, Inputs(asked_, trace_));
    FAIL() << "no error";
  } catch (const PolicyError& error) {
    EXPECT_THAT(error.what(), StartsWith("policy 'mine': Prepare: more than 16 trial runs"));
  }
}

// The arena is full nearly all the time, with blocks from a granule to 100 MiB: the search for
// places must not go as deep as it has choices.
TEST_F(InputsTest, PlansOfLittleMemoryAreFound) {
  Case asked{"resnet50:32"};
  asked.memory = "50%";
  asked.allocator = "planned";
  asked.policy = "superneurons";
  const Report report = RunCase(asked, Inputs(asked)).report;
  ASSERT_TRUE(report.fits());
  EXPECT_LE(report.metrics.peak_reserved.count() * 1000,
            report.metrics.peak_allocated.count() * 1001);
}

}  // namespace
}  // namespace spillway::testing
