#include "traces/import/recording_manifest.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"

namespace spillway::traces {
namespace {

using Value = JsonDocument::Value;

constexpr std::string_view kFormat = "spillway-pytorch-recording";
constexpr double kLongestStepMs = 1e9;

}  // namespace

PyTorchRecording ReadRecordingManifest(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  JsonDocument json(text, path.string());
  PyTorchRecording recording;
  std::string format, outcome;
  const auto file = [&](std::filesystem::path& target) {
    return [&](std::string_view key, Value value) {
      if (key == "file") target = path.parent_path() / json.ReadString(value);
    };
  };
  json.ReadRootMap([&](std::string_view key, Value value) {
    if (key == "format") format = json.ReadString(value);
    if (key == "name") recording.name = json.ReadString(value);
    if (key == "outcome") outcome = json.ReadString(value);
    if (key == "versions") {
      json.ReadMap(value, [&](std::string_view what, Value version) {
        if (what == "torch")
          recording.framework = fmt::format("PyTorch {}", json.ReadString(version));
      });
    }
    if (key == "model") {
      json.ReadMap(value, [&](std::string_view what, Value setting) {
        if (what == "batch") recording.batch = json.ReadInteger(setting, 1, int64_t{1} << 40);
      });
    }
    if (key == "step_ms") {
      json.ReadMap(value, [&](std::string_view what, Value time) {
        if (what != "median") return;
        const double ms = json.ReadNumber(time);
        if (ms < 0 || ms > kLongestStepMs) json.Fail("expected a time from 0 to 10^9 ms");
        recording.plain_step = Duration::Nanoseconds(std::llround(ms * 1e6));
      });
    }
    if (key == "settings") {
      json.ReadMap(value, [&](std::string_view what, Value setting) {
        if (what == "matmul_allow_tf32") recording.tf32_matmuls = json.ReadBool(setting);
        if (what == "cudnn_allow_tf32") recording.tf32_convolutions = json.ReadBool(setting);
      });
    }
    if (key == "files") {
      json.ReadMap(value, [&](std::string_view what, Value described) {
        if (what == "kineto") json.ReadMap(described, file(recording.kineto));
        if (what == "execution_trace") json.ReadMap(described, file(recording.execution_trace));
        if (what == "snapshot") json.ReadMap(described, file(recording.snapshot));
      });
    }
  });
  if (format != kFormat) {
    throw InputError(
        fmt::format("{}: expected a manifest of spillway_torch ('{}')", path.string(), kFormat));
  }
  if (recording.kineto.empty() || recording.execution_trace.empty()) {
    throw InputError(fmt::format(
        "{}: the recording has no profile of a step{}", path.string(),
        outcome.empty() || outcome == "ok" ? "" : fmt::format(": it ended with '{}'", outcome)));
  }
  return recording;
}

}  // namespace spillway::traces
