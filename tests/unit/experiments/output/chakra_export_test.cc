// Tests of Chakra execution traces, which are read here as protocol buffers are, by field numbers.

#include "experiments/output/chakra_export.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/fixtures.h"
#include "tests/testing/scripted_policy.h"
#include "traces/base/error.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

uint64_t TakeVarint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// Returns a message as "1=7 2=name 10={1=num_ops 9=5}", where messages are those of field 10.
std::string TextOf(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const uint64_t key = TakeVarint(message);
    text += fmt::format("{}{}=", text.empty() ? "" : " ", key >> 3);
    if ((key & 7) == 0) {
      text += std::to_string(TakeVarint(message));
      continue;
    }
    EXPECT_EQ(key & 7, 2u);
    const size_t size = TakeVarint(message);
    const std::string_view bytes = message.substr(0, size);
    text += key >> 3 == 10 ? fmt::format("{{{}}}", TextOf(bytes)) : std::string(bytes);
    message.remove_prefix(size);
  }
  return text;
}

std::vector<std::string> MessagesOf(const std::string& file) {
  std::vector<std::string> messages;
  for (std::string_view left = file; !left.empty();) {
    const size_t size = TakeVarint(left);
    messages.push_back(TextOf(left.substr(0, size)));
    left.remove_prefix(size);
  }
  return messages;
}

// A step that gathers g on lane 1 while f2 runs. f3 needs both.
class ChakraExportTest : public ::testing::Test {
 protected:
  ChakraExportTest() {
    trace_.ops[1].lane = 1;
    trace_.ops[1].attributes = {{"bytes", 300}, {"ranks", 2}, {"stride", 4}};
    trace_.ops[1].slots[0].signature = "all_gather g";
    trace_.tensors[2].lane = 1;
    trace_.Validate();
  }

  std::string Export() {
    const FixedCost cost(Duration::Nanoseconds(1400));
    return FormatChakra(trace_, RunSim(trace_, cost, policy_).report);
  }

  Trace trace_ = TraceBuilder()
                     .Tensor("x", TensorKind::kInput, 10)
                     .Tensor("y", TensorKind::kActivation, 10)
                     .Tensor("g", TensorKind::kActivation, 300)
                     .Tensor("z", TensorKind::kActivation, 10)
                     .Op("f1", Phase::kForward, {"x"}, {"y"})
                     .Op("gather", Phase::kForward, {"y"}, {"g"})
                     .Op("f2", Phase::kForward, {"y"}, {"z"})
                     .Op("f3", Phase::kForward, {"g", "z"}, {"z"})
                     .Build();
  ScriptedPolicy policy_;
};

// Kernels of 1.4 us keep the parts of a microsecond for the next one of their stream.
TEST_F(ChakraExportTest, HasANodeForEachCommand) {
  EXPECT_THAT(
      MessagesOf(Export()),
      ElementsAre(
          "1=0.0.4",
          "1=1 2=f1 3=4 6=0 7=1 10={1=is_cpu_op 27=0} 10={1=num_ops 9=0} 10={1=tensor_size 13=20}",
          "1=2 2=gather 3=7 5=1 6=1 7=1 10={1=is_cpu_op 27=0} 10={1=comm_type 9=2} 10={1=comm_size "
          "9=300} 10={1=pg_name 29=1}",
          "1=3 2=f2 3=4 4=1 6=1 7=1 10={1=is_cpu_op 27=0} 10={1=num_ops 9=0} 10={1=tensor_size "
          "13=20}",
          "1=4 2=f3 3=4 4=3 5=2 6=2 7=2 10={1=is_cpu_op 27=0} 10={1=num_ops 9=0} "
          "10={1=tensor_size 13=320}"));
}

TEST_F(ChakraExportTest, HasCopiesAndWhatTheyWaitFor) {
  policy_.after = [](PolicyContext& context, const std::string& op) {
    if (op == "f1") context.Offload(Find(context, "y"));
  };
  const std::vector<std::string> messages = MessagesOf(Export());
  EXPECT_THAT(messages, ::testing::Contains(HasSubstr("2=y 3=3 5=1 ")));
}

TEST_F(ChakraExportTest, RefusesMessagesToUnknownProcesses) {
  trace_.ops[1].slots[0].signature = "send g";
  try {
    Export();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("op 'gather' (send): a Chakra trace names the other"));
  }
}

}  // namespace
}  // namespace spillway::testing
