// The store of a sweep: its results, a row for each cell, and what each was made from. What kind of
// results: simulated, or validated on a GPU.
//
// A SQLite database, described in experiments/tools/sweep/README.md. Several processes may use one
// at once; of a cell that two have computed the first one stays. Rows are written in the
// background, at most 50 ms after they were put; a process that is killed loses those that were
// not. A file that is no store, is damaged or is of another version is left as it is.
//
// Every method may throw `InputError` that begins with the path: a file that cannot be opened, read
// or written, a full disk, damage, or another process that holds it for ten seconds. Safe to use
// from several threads.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/run_result.h"
#include "experiments/tools/measure/validation.h"

namespace spillway {

// Something that a cell's result depends on.
struct CellInput {
  std::string name;
  std::string sha256;  // of its contents; empty where there is none: a built-in policy, a model
};

// What a cell's result was made from.
struct CellProvenance {
  CellInput trace, device, cost_table, policy;
  int model = 0;        // `kModelVersion`
  std::string program;  // version and commit; of a validation also GPU and library
};

// The values of a table of columns, in their order; empty where the result has no such column.
using ResultRow = std::vector<Value>;
ResultRow RowOf(const RunResult& result);
ResultRow RowOf(const ValidationResult& result);

// What the rows of a store are.
struct StoreKind {
  std::string name;                     // "sweep store"
  int application;                      // in the file's header
  Columns<ResultRow> columns;           // `present` where not all results have it
  std::string order;                    // of an export, in SQL
  std::string schema;                   // of an export as JSON
  std::vector<std::string_view> shown;  // columns of a table for people
};
const StoreKind& SweepKind();       // rows of `ResultColumns`
const StoreKind& ValidationKind();  // rows of `ValidationColumns`

// What the header of a file says; a sweep's where it says neither.
const StoreKind& StoreKindOf(const std::filesystem::path& path);

// The columns of such rows. One that not all results have is there if a row has something in it.
Columns<ResultRow> RowColumns(const StoreKind& kind, const std::vector<ResultRow>& rows);

class SweepStore {
 public:
  enum class Open : uint8_t { kExisting, kCreate };
  SweepStore(std::filesystem::path path, Open open, const StoreKind& kind = SweepKind());
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;
  ~SweepStore();  // writes what was put, if it can

  const std::filesystem::path& path() const { return path_; }

  // "ok", "oom" or "failed"; nullopt if the cell is not there.
  std::optional<std::string> StatusOf(std::string_view key) const;
  // Likewise.
  std::optional<ResultRow> RowOf(std::string_view key) const;
  int64_t Size() const;

  // Adds a cell that is not there. `command` are the arguments of `spillway compare`, or
  // `validate`.
  void Put(std::string key, std::string command, ResultRow row, CellProvenance provenance);
  // Writes what was put.
  void Commit();

  // Adds the cells of another store of the kind that are not there, and says how many.
  int64_t Merge(const std::filesystem::path& other);

  struct Entry {
    std::string command;
    ResultRow row;
  };
  // All cells, in an order that depends on nothing but what they are.
  std::vector<Entry> Read() const;

  // How many cells of each policy there are, sorted by policy.
  struct Holding {
    std::string policy;
    int64_t cells = 0, ok = 0, oom = 0, failed = 0;
  };
  std::vector<Holding> Holdings() const;

  // Copies the store into `to` as it is now, whole or not at all.
  void CopyTo(const std::filesystem::path& to) const;

 private:
  class Connection;

  std::filesystem::path path_;
  const StoreKind& kind_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_RESULT_STORE_H_
