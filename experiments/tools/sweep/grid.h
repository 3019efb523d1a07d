// What a sweep runs: lists of what to vary, and the cells that they span.
//
// A list is named alike as option, as key of an experiment file and as what it stands for in
// `spillway compare`. Each value may have braces (pattern.h).

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/scenario.h"
#include "experiments/tools/sweep/pattern.h"

namespace spillway {

// Lists as given, before they are split and expanded. What is empty is as `spillway compare` has
// it, but for the workloads.
struct Experiment {
  std::vector<std::string> workloads, presets, modes, devices, pools, costs, allocators, compress,
      backends, memories, policies;
  bool deterministic = false, charge_input = false, check = false;
  std::string output;  // the store
};

// Names of the lists of an experiment, in the order in which they vary, the first one slowest.
struct ExperimentList {
  const char* name;
  std::vector<std::string> Experiment::*values;
  bool commas;  // separate values
  const char* help;
};
const std::vector<ExperimentList>& ExperimentLists();

struct ExperimentFlag {
  const char* name;
  bool Experiment::*value;
  const char* help;
};
const std::vector<ExperimentFlag>& ExperimentFlags();

// Reads a TOML file: a key for each list (a text or an array of texts) and flag (true or false),
// and `output`. Throws `InputError` of the form "path:line:column: message" for what is no such
// file, an unknown key or a value of another type.
Experiment ReadExperiment(const std::filesystem::path& path);

// One run. What is empty in `machine` is the default.
struct Cell {
  std::string workload, preset, mode;  // of a trace file what it says: empty
  MachineText machine;
  std::string policy;
};

// The text as one word of a shell.
std::string Quoted(const std::string& text);

// The arguments of `spillway compare`, or `run` where the backend executes, that give the cell's
// row, quoted for a shell.
std::string CommandOf(const Cell& cell);

// The cells of an experiment, each by its number. Takes no memory for them.
class Grid {
 public:
  // `all_policies` are those of an experiment that names none. Throws `UsageError`: no workload, an
  // empty place in a list, bad braces, more than 2^40 cells.
  Grid(const Experiment& experiment, const std::vector<std::string>& all_policies);

  uint64_t size() const { return size_; }
  // So many cells in a row differ in memory and policy alone: a group.
  uint64_t group() const { return group_; }
  // REQUIRES: i < size().
  Cell at(uint64_t i) const;

  // Throws `UsageError` or `InputError` for a name that is not known: all that can be said of the
  // values without running a cell. What a policy has to complain of its row will say.
  void Check() const;

 private:
  struct Axis {
    std::string Cell::*text;            // or
    std::string MachineText::*machine;  // or a pool
    Patterns values;
  };

  std::vector<Axis> axes_;  // the first varies slowest
  bool deterministic_, charge_input_, check_;
  uint64_t size_ = 1;
  uint64_t group_ = 1;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_GRID_H_
