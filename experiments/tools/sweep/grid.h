// Describes the runs of a sweep: a list of values for each setting, and the cells that the lists
// span.
//
// A list has the same name as an option, as a key of an experiment file, and as the setting in
// `spillway compare`. Each value may contain braces (experiments/run/pattern.h).

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/case_keys.h"
#include "experiments/run/pattern.h"

namespace spillway::lab {

// An `Experiment` holds the values of each key of `CaseKeys` as the user gave them, before they are
// split and expanded. A key without values has its default. Workloads have no default and are
// required; without policies, all policies run.
struct Experiment {
  std::map<std::string, std::vector<std::string>, std::less<>> values;
  std::string output;  // the path of the store
};

// Reads a TOML file. The value of a key of `CaseKeys` is a string or an array of strings, or true
// or false for a flag. The value of `output` is a string. Throws an `InputError` of the form
// "path:line:column: message" if the file is invalid, a key is unknown or a value has another type.
Experiment ReadExperiment(const std::filesystem::path& path);

// A `Grid` gives access to the cells of an experiment by number. It does not store the cells.
class Grid {
 public:
  // `all_policies` are the policies of an experiment that names none. Throws `UsageError` if there
  // is no workload, a list has an empty place, braces are invalid, or there are more than 2^40
  // cells.
  Grid(const Experiment& experiment, const std::vector<std::string>& all_policies);

  // Returns the number of cells.
  uint64_t size() const { return size_; }
  // Returns the number of cells in a group. The cells of a group have consecutive numbers and
  // differ only in memory and policy.
  uint64_t group() const { return group_; }
  // Returns the cell with number i. REQUIRES: i < size().
  Case at(uint64_t i) const;

  // Checks the values as far as possible without running a cell. Throws `UsageError` or
  // `InputError` if a name is unknown. A `PolicyError` is ignored here: the row of the cell will
  // report it.
  void Check() const;

 private:
  struct Axis {
    const CaseKey* key;
    Patterns values;
  };

  std::vector<Axis> axes_;  // the first varies slowest
  uint64_t size_ = 1;
  uint64_t group_ = 1;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_
