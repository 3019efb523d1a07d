// The manifest that scripts/record_pytorch.py writes beside its recordings.

#ifndef SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_
#define SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "traces/base/units.h"

namespace spillway {

// What a recording consists of. Paths are empty for what it does not have.
struct PyTorchRecording {
  std::filesystem::path kineto, execution_trace, snapshot;
  std::string name;
  std::string framework = "PyTorch";
  int64_t batch = 1;
  Duration plain_step;  // 0: it was not timed
};

// Files are looked for beside the manifest. Throws `InputError` if this is none, or if it is of a
// recording that ended before the step was profiled.
PyTorchRecording ReadRecordingManifest(const std::filesystem::path& path);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_
