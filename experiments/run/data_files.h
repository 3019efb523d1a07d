// Finds the data files that come with the program.
//
// The program looks for them first in the directory named by the environment variable
// SPILLWAY_DATA. An installed program then looks in the tree that it is installed in, even if that
// tree was moved; any other program looks in the source tree that it was built from.

#ifndef SPILLWAY_EXPERIMENTS_RUN_DATA_FILES_H_
#define SPILLWAY_EXPERIMENTS_RUN_DATA_FILES_H_

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway::lab {

// Returns the directory that this program is installed under, or nullopt if it runs from a build
// tree.
std::optional<std::filesystem::path> InstallPrefix();

// Returns the directories that are searched for data files, in the order of the search. They need
// not exist.
std::vector<std::filesystem::path> DataDirectories();

// Returns the path of a data file, or nullopt if no data directory has it. `relative` is its path
// below a data directory: under sim/devices, traces/recorded or experiments.
std::optional<std::filesystem::path> FindDataFile(const std::filesystem::path& relative);

// A file or generated trace that a run depends on.
struct InputFile {
  std::string role;    // "trace", "device", "cost_table", "operator_table", "policy"
  std::string source;  // "file", "data" (comes with the program) or "generated" (NETWORK:BATCH)
  std::string name;    // path as given, path below a data directory, or NETWORK:BATCH
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_DATA_FILES_H_
