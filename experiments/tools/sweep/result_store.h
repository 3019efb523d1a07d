// The store of a sweep holds one result row for each cell, and the inputs of each result. The
// results of a store are either simulated or validated on a GPU.
//
// A store is a SQLite database, described in experiments/tools/sweep/README.md. Several processes
// may use a store at the same time. If two of them compute the same cell, the first result remains.
// Rows are written in the background, at most 50 ms after `Put`. A process that is killed loses the
// rows that were not written. A file that is no store, is damaged or has another version is not
// changed.
//
// Every method may throw an `InputError` that begins with the path: the file cannot be opened, read
// or written, the disk is full, the file is damaged, or another process locks it for ten seconds.
// Safe to use from several threads.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/run_result.h"
#include "experiments/tools/measure/validation.h"

namespace spillway::lab {

// A `CellInput` is an input of a cell's result.
struct CellInput {
  std::string name;
  std::string sha256;  // hash of the contents; empty for a built-in policy or a cost model
};

// A `CellProvenance` holds all inputs of a cell's result.
struct CellProvenance {
  CellInput trace, device, cost_table, policy;
  int model = 0;        // `kModelVersion`
  std::string program;  // version and commit; for a validation also GPU and library
};

// A `ResultRow` holds the values of a table's columns, in their order. A value is empty if the
// result does not have the column.
using ResultRow = std::vector<Value>;
ResultRow RowOf(const RunResult& result);
ResultRow RowOf(const ValidationResult& result);

// A `StoreKind` describes the rows of a store.
struct StoreKind {
  std::string name;                     // "sweep store"
  int application;                      // the application id in the file's header
  Columns<ResultRow> columns;           // `present` is set if some results lack the column
  std::string order;                    // the order of an export, in SQL
  std::string schema;                   // the schema of an export as JSON
  std::vector<std::string_view> shown;  // the columns of a table for people
  // The columns that say of which case a row is. Rows of a case are ranked in a table of their own.
  std::vector<std::string_view> cases = {};
};
const StoreKind& SweepKind();       // rows of `ResultColumns`
const StoreKind& ValidationKind();  // rows of `ValidationColumns`

// Returns the kind in the header of the file. Returns `SweepKind()` if the header has no known
// kind.
const StoreKind& StoreKindOf(const std::filesystem::path& path);

// Returns the columns for these rows. A column that some results lack is included only if a row has
// a value in it.
Columns<ResultRow> RowColumns(const StoreKind& kind, const std::vector<ResultRow>& rows);

// A `SweepStore` is an open store.
class SweepStore {
 public:
  enum class Open : uint8_t { kExisting, kCreate };
  SweepStore(std::filesystem::path path, Open open, const StoreKind& kind = SweepKind());
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;
  ~SweepStore();  // writes the remaining rows; errors are ignored

  const std::filesystem::path& path() const { return path_; }

  struct Status {
    std::string status;  // "ok", "oom" or "failed"
    std::string reason;  // why the workload does not fit, or how the policy failed
  };
  // Returns the status of the cell, or nullopt if the store does not have the cell.
  std::optional<Status> StatusOf(std::string_view key) const;
  // Returns the row of the cell, or nullopt if the store does not have the cell.
  std::optional<ResultRow> RowOf(std::string_view key) const;
  // Returns the number of cells.
  int64_t Size() const;

  // Adds the cell unless the store has it. `command` holds the arguments of `spillway compare` or
  // `spillway validate` that compute the cell.
  void Put(std::string key, std::string command, ResultRow row, CellProvenance provenance);
  // Writes all rows that were put, and returns when they are written.
  void Commit();

  // Adds the cells of another store of the same kind that this store lacks. Returns their number.
  int64_t Merge(const std::filesystem::path& other);

  struct Entry {
    std::string command;
    ResultRow row;
  };
  // Returns all cells, in an order that depends only on their contents.
  std::vector<Entry> Read() const;

  // The number of cells of one policy, in total and by status.
  struct Holding {
    std::string policy;
    int64_t cells = 0, ok = 0, oom = 0, failed = 0;
    std::map<std::string, int64_t> failures = {};  // numbers of failed cells by their reason
  };
  // Returns the holdings of each policy, sorted by policy.
  std::vector<Holding> Holdings() const;

  // Copies the current state of the store to `to`, either completely or not at all.
  void CopyTo(const std::filesystem::path& to) const;

 private:
  class Connection;

  std::filesystem::path path_;
  const StoreKind& kind_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_
