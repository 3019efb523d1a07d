// Runs the cells of a grid that a store does not have yet.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SWEEP_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SWEEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "experiments/tools/sweep/grid.h"
#include "experiments/tools/sweep/result_store.h"
#include "traces/zoo/zoo.h"

namespace spillway {

// Rises with every change after which a result may be another one: of networks and their lowering,
// of the analytic times, of the engine, the runtime, the allocators or the policies. Cells of
// another model are computed anew. tests/cli/sweep_test.py notices changes.
inline constexpr int kModelVersion = 3;

// Cells `index`, `index` + `count`, ... from 1 of the grid, by groups where there are enough.
struct Shard {
  int index = 1;
  int count = 1;

  // "2/8". Throws `UsageError`.
  static Shard Parse(std::string_view text);
  bool Has(const Grid& grid, uint64_t cell) const;
  // How many cells of the grid it has.
  uint64_t Size(const Grid& grid) const;
};

// Says what cells depend on. A key is a SHA-256 over the request, the model version and the
// contents of all files: trace, device, cost table, densities, plugin. A generated trace is a
// function of its name, preset and mode and of the model version. Contents are read once each.
class Fingerprints {
 public:
  // Throws `InputError` if a file is there and cannot be read.
  CellProvenance ProvenanceOf(const Cell& cell);
  CellInput PolicyInput(const std::string& policy);
  // `more`: what else it depends on.
  std::string KeyOf(const Cell& cell, const CellProvenance& provenance,
                    const std::string& more = {}) const;

 private:
  // Of the file's contents; empty if there is no such file.
  const std::string& HashOf(const std::string& path);
  CellInput DataInput(const std::string& relative);

  std::map<std::string, std::string> hashes_;  // by path
  std::map<std::string, Workload> workloads_;  // of trace files, by path
};

struct SweepProgress {
  // Called from any thread.
  std::function<void(const Cell& cell, const RunResult& result)> finished;
};

struct SweepCounts {
  uint64_t cells = 0;    // of the shard
  uint64_t present = 0;  // of them, that the store had
  uint64_t ok = 0, oom = 0, failed = 0;
};

// Which cells of a shard are there: nothing is computed.
SweepCounts CountCells(const Grid& grid, const Shard& shard, const SweepStore* store);

// Computes what is missing, `before` says how much, on `jobs` threads, 0: one per core. Cells of a
// group share the trace, the costs and the run in unlimited memory. Memory does not grow with the
// number of cells. An error of a policy is a row. Throws what a cell throws besides, with the cell;
// what has been computed is in the store then.
SweepCounts RunSweep(const Grid& grid, const Shard& shard, SweepStore& store,
                     const SweepCounts& before, int jobs, const std::string& program,
                     const SweepProgress& progress, const BackendFactories& backends = {});

// Seconds that so many cells of a grid take on `jobs` threads, from runs of a few that are spread
// over it, in about `patience` seconds.
double EstimateSweep(const Grid& grid, uint64_t cells, int jobs, double patience,
                     const BackendFactories& backends = {});

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SWEEP_H_
