// Reads the manifest that `python3 -m spillway_torch` writes next to its recordings.

#ifndef SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_
#define SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "traces/base/units.h"

namespace spillway::traces {

// The files and settings of a recording. The path of a missing file is empty.
struct PyTorchRecording {
  std::filesystem::path kineto, execution_trace, snapshot;
  std::string name;
  std::string framework = "PyTorch";
  int64_t batch = 1;
  Duration plain_step;  // 0: not timed
  bool tf32_matmuls = false, tf32_convolutions = false;
};

// Reads a manifest and finds its files in the same folder. Throws `InputError` if the file is not a
// manifest, or if the recording ended before the step was profiled.
PyTorchRecording ReadRecordingManifest(const std::filesystem::path& path);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_RECORDING_MANIFEST_H_
