// A SQLite file of one kind: the common part of all stores of this program.
//
// A file of another kind, a damaged file and a file held by another program are left unchanged.
// Several processes may use one file at the same time.

#ifndef SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_
#define SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_

#include <SQLiteCpp/SQLiteCpp.h>

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>

#include "traces/base/units.h"

namespace spillway::sim {

class SqliteFile {
 public:
  struct Kind {
    std::string name;  // "benchmark store"
    int application;   // application id in the file's header
    int version;       // user version in the file's header
    std::string schema;
    bool wal = false;  // if true, readers and a writer do not wait for each other
  };
  struct Options {
    bool create = true;  // creates a missing file; if false, a missing file is an `InputError`
    Duration patience = Duration::Milliseconds(10'000);
  };

  // Makes the tables in an empty file. Throws `InputError` that begins with the path if the file
  // cannot be opened or belongs to another program or version.
  SqliteFile(const std::filesystem::path& path, Kind kind, const Options& options);

  // Returns the result of `action()`. An exception of SQLite becomes an `InputError` that begins
  // with the path.
  template <typename Action>
  std::invoke_result_t<Action> Run(const Action& action) const {
    try {
      return action();
    } catch (const SQLite::Exception& error) {
      Fail(error);
    }
  }

  SQLite::Database& database() { return *database_; }
  SQLite::Statement Query(const std::string& text) { return {*database_, text}; }

 private:
  [[noreturn]] void Fail(const SQLite::Exception& error) const;
  int Pragma(const char* name);
  void Prepare();

  const std::string path_;
  const Kind kind_;
  const Duration patience_;
  std::optional<SQLite::Database> database_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_
