#include "traces/import/kineto.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/testing/files.h"
#include "traces/import/how_to_record.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

KinetoTrace Read(std::string_view text) {
  TextStream stream(std::string(text), "k.json");
  return ReadKineto(stream);
}

// Returns an operator that lasts from 10.000 to 15.000 us, followed by `events`.
std::string WithEvents(std::string_view events) {
  return fmt::format(R"({{"traceEvents": [
{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10.000, "dur": 5.000, "args": {{}}}}{}
]}})",
                     events);
}

TEST(KinetoTest, KeepsWhatAStepIsMadeOf) {
  const KinetoTrace trace = Read(R"({
"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}, {"name": "b"}],
"traceEvents": [
{"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 4322416607473.949, "dur": 50.286,
 "args": {"External id": 5, "device": 0, "stream": 7, "correlation": 31, "grid": [8, 1, 1]}},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 11, "ts": 4322416607372.949, "dur": 350.286,
 "args": {"External id": 5, "Record function id": 6, "Sequence number": 2, "Ev Idx": 1}},
{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 4322416607372.950, "dur": 1,
 "args": {"External id": 3, "device": 0, "stream": 8, "correlation": 30, "bytes": 4}},
{"ph": "X", "cat": "gpu_memset", "ts": 4322416607380.0, "dur": 0.5, "args": {"device": 1}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 4322416607400.949, "dur": 4.000,
 "args": {"correlation": 31}},
{"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": 4322416607373.949, "dur": 1.25,
 "args": {"correlation": 30}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 4322416607900.0, "dur": 1, "args": {}},
{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "tid": 11, "ts": 4322416607373.949,
 "args": {"Total Reserved": 2097152, "Total Allocated": 1024, "Bytes": -512, "Device Id": 0,
          "Device Type": 1, "Addr": 18446744073709551615, "Ev Idx": 7}},
{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "tid": 12, "ts": 4322416607372.949,
 "args": {"Bytes": 64, "Device Id": 0, "Device Type": 0, "Addr": 4096}},
{"ph": "i", "name": "[OutOfMemory]", "ts": 4322416607373.949, "args": {"Bytes": 64}},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1.0, "dur": 9.0},
{"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "tid": "Spans", "ts": 2.0},
{"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}}
]})");
  EXPECT_EQ(trace.device, "NVIDIA H200");
  EXPECT_EQ(trace.begin, 0);
  EXPECT_EQ(trace.end, 350286);
  EXPECT_EQ(trace.broken, 0);
  ASSERT_EQ(trace.operators.size(), 1u);
  const auto& op = trace.operators[0];
  EXPECT_EQ(op.name, "aten::mm");
  EXPECT_EQ(op.record, 6);
  EXPECT_EQ(op.external_id, 5);
  EXPECT_EQ(op.thread, 11);
  EXPECT_EQ(op.begin, 0);
  EXPECT_EQ(op.end, 350286);
  ASSERT_EQ(trace.activities.size(), 3u);  // sorted by begin
  EXPECT_EQ(trace.activities[0].begin, 1);
  EXPECT_EQ(trace.activities[1].device, 1);
  EXPECT_EQ(trace.activities[1].external_id, 0);
  EXPECT_EQ(trace.activities[1].end, 7551);
  const auto& kernel = trace.activities[2];
  EXPECT_EQ(kernel.external_id, 5);
  EXPECT_EQ(kernel.correlation, 31);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.begin, 101000);
  EXPECT_EQ(kernel.end, 151286);
  ASSERT_EQ(trace.launches.size(), 2u);  // sorted by correlation
  EXPECT_EQ(trace.launches[0].correlation, 30);
  EXPECT_EQ(trace.launches[0].end, 2250);
  EXPECT_EQ(trace.launches[1].end, 32000);
  ASSERT_EQ(trace.memory.size(), 2u);  // sorted by time
  EXPECT_EQ(trace.memory[0].device, -1);
  EXPECT_EQ(trace.memory[0].bytes, 64);
  const auto& given_back = trace.memory[1];
  EXPECT_EQ(given_back.order, 7);
  EXPECT_EQ(given_back.time, 1000);
  EXPECT_EQ(given_back.thread, 11);
  EXPECT_EQ(given_back.device, 0);
  EXPECT_EQ(given_back.address, 18446744073709551615u);
  EXPECT_EQ(given_back.bytes, -512);
  EXPECT_EQ(given_back.allocated, 1024);
  EXPECT_EQ(given_back.reserved, 2097152);
}

// Operators that begin together are ordered by descending end, outermost first. Requests at the
// same time are ordered by the profiler's number.
TEST(KinetoTest, OrderAtTheSameTime) {
  const KinetoTrace trace = Read(WithEvents(R"(,
{"ph": "X", "cat": "cpu_op", "name": "outer", "ts": 10.0, "dur": 9},
{"ph": "i", "name": "[memory]", "ts": 10.0, "args": {"Ev Idx": 9}},
{"ph": "i", "name": "[memory]", "ts": 10.0, "args": {"Ev Idx": 8}})"));
  EXPECT_EQ(trace.operators[0].name, "outer");
  EXPECT_EQ(trace.operators[1].name, "aten::mm");
  EXPECT_EQ(trace.memory[0].order, 8);
  EXPECT_EQ(trace.memory[1].order, 9);
}

TEST(KinetoTest, TimesAreExact) {
  struct Case {
    const char* text;
    int64_t nanoseconds;  // after 10 us
  };
  for (const Case& test :
       {Case{"10.001", 1}, Case{"10.1", 100}, Case{"10.0019", 1}, Case{"11", 1000}}) {
    for (const char* origin : {"", "17908570260000"}) {  // one origin counts from 1970
      const KinetoTrace trace = Read(fmt::format(R"({{"traceEvents": [
{{"ph": "X", "cat": "cpu_op", "ts": {0}10.000, "dur": 1}},
{{"ph": "X", "cat": "kernel", "ts": {0}{1}, "dur": 0}}]}})",
                                                 origin, test.text));
      ASSERT_EQ(trace.activities.size(), 1u) << origin << test.text;
      EXPECT_EQ(trace.activities[0].begin, test.nanoseconds) << origin << test.text;
    }
  }
  // An event without a decimal time is ignored. So is an event that ends before it begins.
  for (const char* event :
       {R"("ts": 1e3, "dur": 1)", R"("ts": "10 us", "dur": 1)", R"("dur": 1)", R"("ts": 10)",
        R"("ts": 10, "dur": -1)", R"("ts": 99999999999999999999, "dur": 1)"}) {
    const std::string kernel = fmt::format(R"(,{{"ph": "X", "cat": "kernel", {}}})", event);
    EXPECT_THAT(Read(WithEvents(kernel)).activities, IsEmpty()) << event;
  }
}

TEST(KinetoTest, NumbersAndTimesMayBeStrings) {
  const std::string plain = WithEvents(R"(,
{"ph": "X", "cat": "kernel", "ts": 16.949, "dur": 1.500,
 "args": {"External id": 5, "correlation": 31, "device": 1, "stream": 7}},
{"ph": "i", "name": "[memory]", "tid": 3, "ts": 17.949,
 "args": {"Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 18446744073709551615}})");
  std::string quoted;
  for (size_t i = 0; i < plain.size();) {
    const bool number = plain.find_first_of("-0123456789", i) == i && plain[i - 1] == ' ';
    const size_t end = number ? plain.find_first_not_of("-.0123456789", i) : i + 1;
    quoted += number ? fmt::format("\"{}\"", plain.substr(i, end - i)) : plain.substr(i, 1);
    i = end;
  }
  ASSERT_THAT(quoted, HasSubstr("\"ts\": \"16.949\""));
  const KinetoTrace a = Read(plain), b = Read(quoted);
  ASSERT_EQ(b.activities.size(), 1u);
  EXPECT_EQ(b.activities[0].begin, a.activities[0].begin);
  EXPECT_EQ(b.activities[0].end, a.activities[0].end);
  EXPECT_EQ(b.activities[0].correlation, 31);
  ASSERT_EQ(b.memory.size(), 1u);
  EXPECT_EQ(b.memory[0].time, a.memory[0].time);
  EXPECT_EQ(b.memory[0].bytes, -512);
  EXPECT_EQ(b.memory[0].address, UINT64_MAX);
}

TEST(KinetoTest, RefusesSeveralProcesses) {
  const auto with = [](int processes, std::string_view more = "") {
    std::string events;
    for (int i = 0; i < 3 * processes; ++i) {
      events += fmt::format(
          R"(,{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": {}, "ts": 1, "dur": 1}})",
          70 + i % processes);
    }
    return WithEvents(events + std::string(more));
  };
  const auto error = [](const std::string& text) { return InputErrorOf([&] { Read(text); }); };
  // Kernels have the number of their GPU.
  Read(with(1, R"(,{"ph": "X", "cat": "kernel", "pid": 0, "ts": 1, "dur": 1})"));
  EXPECT_THAT(error(with(1, R"(,{"ph": "i", "name": "[memory]", "pid": "b", "ts": 1})")),
              HasSubstr("k.json: operators of several processes (70, b), expected one"));
  EXPECT_THAT(error(with(3)), HasSubstr("several processes (70, 71, 72), expected one"));
  EXPECT_THAT(error(with(8)), HasSubstr("(70, 71, 72, 73, 74, 75, 76, 77)"));
  EXPECT_THAT(error(with(100)), HasSubstr(", 77, and more)"));
}

// Before 2022 categories had other names.
TEST(KinetoTest, ReadsOldCategories) {
  const KinetoTrace trace = Read(R"({"traceEvents": [
{"ph": "X", "cat": "Operator", "name": "a", "ts": 1, "dur": 1},
{"ph": "X", "cat": "Kernel", "ts": 1, "dur": 1}, {"ph": "X", "cat": "Memcpy", "ts": 1, "dur": 1}]})");
  ASSERT_EQ(trace.operators.size(), 1u);
  EXPECT_EQ(trace.operators[0].record, -1);
  EXPECT_EQ(trace.activities.size(), 2u);
}

TEST(KinetoTest, CountsBrokenEvents) {
  struct Case {
    const char* event;
    int64_t broken;
  };
  for (const Case& test : {
           Case{R"({"ph": "X", "cat": "kernel", "name": })", 1},
           Case{R"({"ph": 1})", 1},
           Case{R"({"ph": "X", "args": 5})", 1},
           Case{"{\"ph\": \"X\", \"cat\": \"ker\n{\"ph\": \"X\"}", 1},  // cut off
           // Events of these categories fill most of a file and are not parsed to their end.
           Case{R"({"ph": "X", "cat": "python_function", "name": })", 0},
           Case{R"({"ph": "s", "id": 1, "cat": "ac2g", "name": })", 0},
       }) {
    const KinetoTrace trace = Read(WithEvents(std::string(",\n") + test.event));
    EXPECT_EQ(trace.broken, test.broken) << test.event;
    EXPECT_EQ(trace.operators.size(), 1u) << test.event;
  }
}

// Times that would overflow sums over a trace do not come from a training step.
TEST(KinetoTest, RefusesWhatIsTooMuch) {
  for (
      const char* event : {
          R"({"ph": "X", "cat": "kernel", "ts": 4000000000000.0, "dur": 0})",
          R"({"ph": "X", "cat": "cpu_op", "ts": -4000000000000.0, "dur": 0})",
          R"({"ph": "X", "cat": "cuda_driver", "ts": 10, "dur": 4000000000000, "args": {"correlation": 1}})",
          R"({"ph": "i", "name": "[memory]", "ts": -4000000000000})",
          R"({"ph": "X", "cat": "kernel", "ts": 10, "dur": 1700000000000},
{"ph": "X", "cat": "kernel", "ts": 10, "dur": 1700000000000},
{"ph": "X", "cat": "kernel", "ts": 10, "dur": 1700000000000})",
      }) {
    EXPECT_EQ(InputErrorOf([&] { Read(WithEvents(std::string(",") + event)); }),
              "k.json: the events take more than 53 days")
        << event;
  }
  for (const char* key : {"Bytes", "Total Allocated", "Total Reserved"}) {
    for (const char* amount : {"-9223372036854775808", "1152921504606846977"}) {
      EXPECT_EQ(InputErrorOf([&] {
                  Read(WithEvents(fmt::format(
                      R"(,{{"ph": "i", "name": "[memory]", "ts": 1, "args": {{"{}": {}}}}})", key,
                      amount)));
                }),
                "k.json: memory events of more than 2^60 bytes")
          << key;
    }
  }
}

TEST(KinetoTest, RefusesOthers) {
  EXPECT_THAT(InputErrorOf([] { Read("{}"); }),
              HasSubstr("k.json: there is no such array, expected a trace of torch.profiler with "
                        "an array 'traceEvents'"));
  EXPECT_EQ(InputErrorOf([] { Read(R"({"traceEvents": [{"ph": "M", "name": "a"}]})"); }),
            fmt::format("k.json: no operators, expected a trace of torch.profiler with the "
                        "activity CPU{}",
                        kHowToRecord));
  std::string text = WithEvents("");
  text.resize(text.size() - 3);
  EXPECT_EQ(InputErrorOf([&] { Read(text); }),
            "k.json: the events end too early: was the file cut off?");
}

}  // namespace
}  // namespace spillway::testing
