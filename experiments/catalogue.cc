#include "experiments/catalogue.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "sim/core/error.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table.h"
#include "traces/format.h"
#include "traces/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway {

namespace fs = std::filesystem;

namespace {

// Where the shared library that holds this code was loaded from: an installed tree can be moved.
fs::path LibraryDirectory() {
  static const char here = 0;  // lies in that library
  Dl_info info{};
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

}  // namespace

std::vector<fs::path> DataDirectories() {
  std::vector<fs::path> directories;
  if (const char* chosen = std::getenv("SPILLWAY_DATA")) directories.emplace_back(chosen);
  const fs::path library = LibraryDirectory();
  std::error_code ignored;
  const fs::path installed = library / SPILLWAY_DATA_FROM_LIBRARY;
  directories.push_back(fs::is_directory(installed, ignored) ? installed.lexically_normal()
                                                             : fs::path(SPILLWAY_SOURCE_DATA));
  return directories;
}

std::optional<fs::path> InstallPrefix() {
  const fs::path library = LibraryDirectory();
  std::error_code ignored;
  if (!fs::is_directory(library / SPILLWAY_DATA_FROM_LIBRARY, ignored)) return std::nullopt;
  return (library / SPILLWAY_PREFIX_FROM_LIBRARY / "").lexically_normal().parent_path();
}

std::optional<fs::path> FindDataFile(const fs::path& relative) {
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    if (fs::is_regular_file(directory / relative, ignored)) return directory / relative;
  }
  return std::nullopt;
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory / "sim/devices", ignored)) {
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path DevicePath(const std::string& name) {
  if (name.ends_with(".toml")) return name;
  const auto path = FindDataFile(fs::path("sim/devices") / (name + ".toml"));
  if (!path) throw UsageError(UnknownName("device", name, DeviceNames()));
  return *path;
}

Device LoadDevice(const std::string& name) { return ReadDevice(DevicePath(name)); }

Trace LoadWorkload(const std::string& text, const WorkloadOptions& options) {
  if (text.ends_with(".json") || text.ends_with(".zst")) return ReadTrace(text);
  const Workload workload = ParseWorkload(text);
  return LowerNetwork(BuildNetwork(workload.network),
                      {workload.batch, options.preset, options.training});
}

fs::path RecordedTablePath(const std::string& device, const Trace& trace) {
  return fs::path("traces/recorded") / device /
         fmt::format("{}-{}.json.zst", trace.network, trace.batch);
}

std::optional<CostTable> FindRecordedTable(const Trace& trace, const Device& device) {
  const auto path = FindDataFile(RecordedTablePath(device.name, trace));
  return path ? std::optional(ReadCostTable(*path)) : std::nullopt;
}

std::unique_ptr<CostModel> LoadCost(const std::string& source, const Trace& trace,
                                    const Device& device) {
  if (source == "roofline") return std::make_unique<RooflineCostModel>(device);
  if (source != "auto") {
    return std::make_unique<TableCostModel>(ReadCostTable(source), device);
  }
  if (auto table = FindRecordedTable(trace, device)) {
    return std::make_unique<TableCostModel>(std::move(*table), device);
  }
  return std::make_unique<RooflineCostModel>(device);
}

}  // namespace spillway
