#include "experiments/run/workload_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "experiments/run/case_keys.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WorkloadTextTest, ComesBackAsItWas) {
  for (const char* text :
       {"vgg16:64", "vgg16", "vgg16:64,preset=vdnn,mode=inference", "step.json",
        "a,b=1/step.json.zst",
        "densenet(6,12,24,16,k=32):8,accumulate=4,clip-norm=0.5,loss-chunks=2",
        "gpt2@512:8,attention=math,optimizer=adamw,precision=bf16",
        "step.json,batch=16,optimizer=8bit,precision=autocast,accumulate=2,host=5us",
        "a,b=1/step.json.zst,optimizer=offloaded,precision=bf16,host=none"}) {
    EXPECT_EQ(WorkloadText(WithWorkload({}, text)), text);
  }
}

// Each option changes its own value, and no two texts of it mean the same.
TEST(WorkloadTextTest, EachOptionIsReadAndWritten) {
  for (const WorkloadOption& option : WorkloadOptions()) {
    for (const auto& [name, values] :
         {std::pair("gpt2:8", option.network), {"step.json", option.file}}) {
      if (values == nullptr) continue;
      std::vector<std::string> texts = Alternatives(values);
      if (texts.empty()) texts = {option.name == std::string("host") ? "3us" : "2"};
      for (const std::string& text : texts) {
        const Case asked = WithWorkload({}, fmt::format("{},{}={}", name, option.name, text));
        EXPECT_EQ(asked.workload, name);
        EXPECT_EQ(option.get(asked), text) << option.name;
      }
    }
  }
}

TEST(WorkloadTextTest, ValuesHaveTypes) {
  const Case network = WithWorkload({}, "gpt2@512:8:optimizer=adamw,precision=bf16,mode=inference");
  EXPECT_EQ(network.workload, "gpt2@512:8");
  EXPECT_EQ(network.optimizer, OpType::kAdamW);
  EXPECT_EQ(network.precision, Precision::kBf16);
  EXPECT_EQ(network.training, false);
  EXPECT_FALSE(network.changes.any());
  const Case step = WithWorkload({}, "step.json:batch=16,precision=bf16,host=none");
  EXPECT_EQ(step.changes.batch, 16);
  EXPECT_EQ(step.changes.numbers, StepChanges::Numbers::kBfloat16);
  EXPECT_EQ(step.precision, std::nullopt);
  EXPECT_EQ(step.host.kind, HostTimes::Kind::kNone);
}

TEST(WorkloadTextTest, DefaultsAreLeftOut) {
  EXPECT_EQ(WorkloadText(WithWorkload({}, "vgg16:64,preset=torch,mode=training")), "vgg16:64");
  EXPECT_EQ(WorkloadText(WithWorkload({}, "step.json,host=plain")), "step.json");
}

TEST(WorkloadTextTest, ErrorsNameTextOptionAndValidValues) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      WithWorkload({}, text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message("gpt2:8,optimzer=adam"),
            "workload 'gpt2:8,optimzer=adam': unknown option 'optimzer'; did you mean 'optimizer'? "
            "(valid: preset, mode, attention, optimizer, precision, accumulate, clip-norm, "
            "loss-chunks)");
  EXPECT_THAT(
      message("gpt2:8,optimizer=adan"),
      HasSubstr("unknown optimizer 'adan'; did you mean 'adam'? (valid: sgd, adam, adamw)"));
  EXPECT_THAT(message("s.json,optimizer=adam"),
              HasSubstr("(valid: 8bit, offloaded, parts, early)"));
  EXPECT_THAT(message("s.json,precision=fp32"), HasSubstr("(valid: bf16, autocast)"));
  EXPECT_THAT(message("s.json,clip-norm=1"),
              AllOf(HasSubstr("clip-norm: the option is for networks that spillway builds"),
                    HasSubstr("(valid: batch, preset, mode, optimizer, precision, accumulate, "
                              "loss-chunks, world, nodes, shards, reshard, reduce, host)")));
  EXPECT_THAT(message("gpt2:8,batch=16"), HasSubstr("batch: the option is for trace files"));
  EXPECT_THAT(message("gpt2:8,mode=training,mode=inference"), HasSubstr("mode is given twice"));
  EXPECT_THAT(message("gpt2:8,mode="), HasSubstr("mode: no value is given"));
  EXPECT_THAT(message("gpt2:8,mode=training,fast"), HasSubstr("'fast' is not option=value"));
  EXPECT_THAT(message("s.json,batch=0"), HasSubstr("batch: '0' is not a whole number from 1 to"));
  EXPECT_THAT(message("gpt2:8,clip-norm=-1"), HasSubstr("'-1' is not a positive number"));
  EXPECT_THAT(message("s.json,host=fast"), HasSubstr("or a time for each operator (5us)"));
}

TEST(WorkloadTextTest, IsTheWorkloadOfACommand) {
  const Case asked = WithWorkload({}, "vgg16:64,preset=vdnn");
  EXPECT_EQ(CommandOf(asked), "vgg16:64,preset=vdnn --policy liveness");
  EXPECT_THAT(Alternatives("sgd|adam"), ElementsAre("sgd", "adam"));
}

}  // namespace
}  // namespace spillway::testing
