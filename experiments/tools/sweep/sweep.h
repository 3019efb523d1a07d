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

namespace spillway::lab {

// The version of the model. It must be incremented with every change that may change a result: in
// networks and their lowering, the analytic times, the engine, the runtime, the allocators or the
// policies. Cells of another version are computed again. tests/cli/sweep_test.py detects changes.
inline constexpr int kModelVersion = 5;

// A `Shard` is one of `count` parts of a grid. It holds the cells `index`, `index` + `count`, ...,
// counted from 1. If there are at least four groups per shard, it holds groups of cells instead.
struct Shard {
  int index = 1;  // from 1 to `count`
  int count = 1;

  // Parses "index/count", such as "2/8". Throws `UsageError` if the text is invalid.
  static Shard Parse(std::string_view text);
  // Returns true iff the shard has the cell with this number.
  bool Has(const Grid& grid, uint64_t cell) const;
  // Returns the number of cells of the grid that the shard has.
  uint64_t Size(const Grid& grid) const;
};

// A `Fingerprints` object finds the inputs of cells. The key of a cell is a SHA-256 over the
// request, the model version and the contents of all files: trace, device, cost table, densities
// and plugin. A generated trace depends only on its name, preset, mode and the model version. Each
// file is read once.
class Fingerprints {
 public:
  // Returns the inputs of the cell. Throws `InputError` if a file exists and cannot be read.
  CellProvenance ProvenanceOf(const Case& cell);
  CellInput PolicyInput(const PolicyChoice& policy);
  // Returns the key of the cell. `more` is a text on which the key also depends.
  std::string KeyOf(const Case& cell, const CellProvenance& provenance,
                    const std::string& more = {}) const;

 private:
  // Returns the hash of the file's contents, or an empty string if there is no such file.
  const std::string& HashOf(const std::string& path);
  CellInput DataInput(const std::string& relative);

  std::map<std::string, std::string> hashes_;  // by path
  std::map<std::string, Workload> workloads_;  // workloads of trace files, by path
};

struct SweepProgress {
  // Called after each computed cell, from any thread. May be null.
  std::function<void(const Case& cell, const RunResult& result)> finished;
};

struct SweepCounts {
  uint64_t cells = 0;                       // cells of the shard
  uint64_t present = 0;                     // cells that the store already had
  uint64_t ok = 0, oom = 0, failed = 0;     // cells with a result, by status
  std::map<std::string, int64_t> failures;  // numbers of failed cells by their reason
};

// Counts the cells of a shard and those already in the store. Computes no cells. `store` may be
// null.
SweepCounts CountCells(const Grid& grid, const Shard& shard, const SweepStore* store);

// Computes the cells of the shard that the store lacks, and returns the counts. `before` holds the
// counts of `CountCells`. `jobs` is the number of threads; 0 means one per core. Cells of a group
// share the trace, the costs and the run in unlimited memory. Memory use does not grow with the
// number of cells. If a policy fails, the row reports the error. Other errors of a cell are thrown
// with the command of the cell; the store then keeps the cells that were computed before.
SweepCounts RunSweep(const Grid& grid, const Shard& shard, SweepStore& store,
                     const SweepCounts& before, int jobs, const std::string& program,
                     const SweepProgress& progress, const BackendFactories& backends = {});

// Returns the estimated number of seconds for `cells` cells of the grid on `jobs` threads. The
// estimate runs a sample of cells spread over the grid, for about `patience` seconds.
double EstimateSweep(const Grid& grid, uint64_t cells, int jobs, double patience,
                     const BackendFactories& backends = {});

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_SWEEP_H_
