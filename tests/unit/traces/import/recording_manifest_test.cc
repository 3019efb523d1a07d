#include "traces/import/recording_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::spillway::testing::TemporaryDirectory;
using ::spillway::testing::WriteRaw;
using ::testing::HasSubstr;

constexpr std::string_view kManifest = R"({
"format": "spillway-pytorch-recording", "version": 1, "name": "gpt2-b4s512", "outcome": "ok",
"model": {"model": "gpt2", "batch": 4, "sequence": 512}, "step_ms": {"median": 78.5, "all": [78.5]},
"versions": {"torch": "2.11.0", "python": "3.12"},
"settings": {"matmul_allow_tf32": false, "cudnn_allow_tf32": true, "allocator": ""},
"files": {"kineto": {"file": "k.json.gz", "sha256": "0"}, "execution_trace": {"file": "e.json.gz"},
          "snapshot": {"file": "s.pickle"}}})";

std::string Edited(std::string_view from, std::string_view to) {
  std::string text(kManifest);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(RecordingManifestTest, ReadsWhatItNames) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "m.json", kManifest);
  const PyTorchRecording recording = ReadRecordingManifest(directory / "m.json");
  EXPECT_EQ(recording.kineto, directory / "k.json.gz");
  EXPECT_EQ(recording.execution_trace, directory / "e.json.gz");
  EXPECT_EQ(recording.snapshot, directory / "s.pickle");
  EXPECT_EQ(recording.name, "gpt2-b4s512");
  EXPECT_EQ(recording.framework, "PyTorch 2.11.0");
  EXPECT_EQ(recording.batch, 4);
  EXPECT_EQ(recording.plain_step, Duration::Microseconds(78500));
  EXPECT_FALSE(recording.tf32_matmuls);
  EXPECT_TRUE(recording.tf32_convolutions);
}

TEST(RecordingManifestTest, MostMayLack) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "m.json",
           R"({"format": "spillway-pytorch-recording", "step_ms": {}, "model": {},
"files": {"kineto": {"file": "k"}, "execution_trace": {"file": "e"}}})");
  const PyTorchRecording recording = ReadRecordingManifest(directory / "m.json");
  EXPECT_EQ(recording.framework, "PyTorch");
  EXPECT_EQ(recording.batch, 1);
  EXPECT_EQ(recording.plain_step, Duration());
  EXPECT_TRUE(recording.snapshot.empty());
}

TEST(RecordingManifestTest, RefusesOthers) {
  const TemporaryDirectory directory;
  struct Case {
    const char* from;
    const char* to;
    const char* error;
  };
  for (const Case& test : {
           Case{"spillway-pytorch", "another", "expected a manifest of spillway_torch"},
           Case{"kineto", "else", "the recording has no profile of a step"},
           Case{"\"batch\": 4", "\"batch\": 0", "m.json:3"},
           Case{"78.5", "-1", "expected a time from 0 to 10^9 ms"},
           Case{"78.5", "1e10", "expected a time from 0 to 10^9 ms"},
           Case{"\"k.json.gz\"", "5", "m.json:6"},
       }) {
    WriteRaw(directory / "m.json", Edited(test.from, test.to));
    EXPECT_THAT(InputErrorOf([&] { ReadRecordingManifest(directory / "m.json"); }),
                HasSubstr(test.error))
        << test.to;
  }
}

TEST(RecordingManifestTest, SaysHowTheRecordingEnded) {
  const TemporaryDirectory directory;
  WriteRaw(directory / "m.json",
           R"({"format": "spillway-pytorch-recording", "outcome": "out of memory", "files": {}})");
  EXPECT_THAT(InputErrorOf([&] { ReadRecordingManifest(directory / "m.json"); }),
              HasSubstr("m.json: the recording has no profile of a step: it ended with 'out of "
                        "memory'"));
}

}  // namespace
}  // namespace spillway::testing
