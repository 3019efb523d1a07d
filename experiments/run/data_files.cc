#include "experiments/run/data_files.h"

#include <dlfcn.h>

#include <cstdlib>
#include <system_error>

namespace spillway::lab {

namespace fs = std::filesystem;

namespace {

// Returns the directory that the shared library with this code was loaded from, or an empty path if
// it is unknown. The path is found at run time because an installed tree can be moved.
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

}  // namespace spillway::lab
