// A SQLite file of one kind: what all stores of this program share.
//
// A file that is of another kind, is damaged or is held by another program is left as it is.
// Several processes may use one at once.

#ifndef SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_
#define SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_

#include <SQLiteCpp/SQLiteCpp.h>

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>

#include "traces/base/units.h"

namespace spillway {

class SqliteFile {
 public:
  struct Kind {
    std::string name;  // "benchmark store"
    int application;   // in the file's header
    int version;       // the user version there
    std::string schema;
    bool wal = false;  // readers and a writer do not wait for each other
  };
  struct Options {
    bool create = true;  // where there is no file; otherwise that is an `InputError`
    Duration patience = Duration::Milliseconds(10'000);
  };

  // Makes the tables in an empty file. Throws `InputError` that begins with the path: a file that
  // cannot be opened, of another program or of another version.
  SqliteFile(const std::filesystem::path& path, Kind kind, const Options& options);

  // The result of `action()`. What SQLite throws becomes an `InputError` that begins with the path.
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

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_RECORDS_SQLITE_FILE_H_
