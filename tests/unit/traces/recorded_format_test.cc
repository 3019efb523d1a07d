#include "traces/format.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/files.h"
#include "tests/unit/traces/format_cases.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::ErrorOfEdit;
using ::spillway::testing::InputErrorOf;
using ::spillway::testing::kSmall;
using ::spillway::testing::RandomTrace;
using ::spillway::testing::Shuffled;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(RecordedFormatTest, RecordedTraces) {
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

TEST(RecordedFormatTest, RequestsBeforeTheFirstIteration) {
  const Trace trace = ParseTrace(WithRequests(), "t.json");
  EXPECT_THAT(trace.recording->requests,
              ElementsAre(SetupRequest{Bytes(30), 1}, SetupRequest{Bytes(24)}));
  EXPECT_EQ(trace.tensors[0].request, 1u);
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 5"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
}

TEST(RecordedFormatTest, LanesOfRequests) {
  const Trace trace = ParseTrace(WithRequests("[[30, 1, 4], [24, -1]]", "1", 11), "t.json");
  EXPECT_THAT(trace.recording->requests,
              ElementsAre(SetupRequest{Bytes(30), 1, 4}, SetupRequest{Bytes(24)}));
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 11"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
}

// Returns `Recorded()` with cuts of the compiled step.
std::string WithCompiled(const std::string& cuts, int version = 12) {
  std::string text = Recorded("\"version\": 3", fmt::format("\"version\": {}", version));
  return text.insert(text.rfind('}'), fmt::format(",\n\"compiled\": [{}]", cuts));
}

TEST(RecordedFormatTest, CutsOfTheCompiledStep) {
  const std::string own = R"({"memory": 9, "flops": 4, "traffic": 7, "kernels": 3})";
  const std::string less = R"({"memory": 8, "flops": 6, "traffic": 5, "kernels": 1})";
  const Trace trace = ParseTrace(WithCompiled(fmt::format("{}, {}", own, less)), "t.json");
  EXPECT_THAT(trace.compiled, ElementsAre(CompiledCut{Bytes(9), 4, Bytes(7), 3},
                                          CompiledCut{Bytes(8), 6, Bytes(5), 1}));
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("\"version\": 12"));
  EXPECT_EQ(ParseTrace(text, "t.json"), trace);
  const auto error = [](const std::string& cuts, int version = 12) {
    return InputErrorOf([&] { ParseTrace(WithCompiled(cuts, version), "t.json"); });
  };
  EXPECT_THAT(error(own, 11), HasSubstr("the key 'compiled' needs version 12 of the format"));
  EXPECT_THAT(error(fmt::format("{}, {}", own, own)),
              HasSubstr("compiled[1] takes 9 bytes, expected less than the 9 of the one before"));
  EXPECT_THAT(error(R"({"memory": 9, "flops": 4, "traffic": 7, "kernels": 0})"),
              HasSubstr("compiled[0].kernels: expected an integer from 1"));
  EXPECT_THAT(error(R"({"memory": 9, "flops": 4, "traffic": 7})"),
              HasSubstr("compiled[0]: the key 'kernels' is missing"));
  Trace alone = trace;
  alone.compiled[0].kernels = 0;
  EXPECT_THROW(alone.Validate(), InputError);
}

TEST(RecordedFormatTest, TensorsThatMayNotMove) {
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

TEST(RecordedFormatTest, SavedTensorsRoundTrip) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Trace trace = RandomSaved(seed);
    const std::string text = FormatTrace(trace);
    EXPECT_EQ(ParseTrace(text, "t.json"), trace) << "seed " << seed;
    EXPECT_EQ(FormatTrace(ParseTrace(text, "t.json")), text) << "seed " << seed;
  }
}

TEST(RecordedFormatTest, OnlySavedTensorsMoveByDefault) {
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

TEST(RecordedFormatErrorTest, SavedTensors) {
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

TEST(RecordedFormatErrorTest, RequestsBeforeTheFirstIteration) {
  const auto error = [](const std::string& requests, const std::string& request) {
    return InputErrorOf([&] { ParseTrace(WithRequests(requests, request), "t.json"); });
  };
  EXPECT_THAT(error("[[30]]", "0"), HasSubstr("expected two or three numbers: size, freed, lane"));
  EXPECT_THAT(error("[[30, 1, 2]]", "0"), HasSubstr("needs version 11 of the format"));
  const auto error_of_11 = [](const std::string& requests) {
    return InputErrorOf([&] { ParseTrace(WithRequests(requests, "0", 11), "t.json"); });
  };
  EXPECT_THAT(error_of_11("[[30, 1, 2, 3]]"), HasSubstr("expected two or three numbers"));
  EXPECT_THAT(error_of_11("[[30, 1, 5]]"), HasSubstr("requests[0][2]"));
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
TEST(RecordedFormatErrorTest, KeysOfRecordedTracesNeedTheirVersion) {
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

TEST(RecordedFormatErrorTest, RecordedTraces) {
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

}  // namespace
}  // namespace spillway::testing
