#include "sim/cost/records/sqlite_file.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <string_view>
#include <utility>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// Explains an error in words; `reason` is SQLite's message.
std::string Explain(int code, std::string_view reason, const std::string& kind, Duration patience) {
  switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return fmt::format("another process has held the file for {}; nothing was changed",
                         FormatDuration(patience));
    case SQLITE_NOTADB:
      return fmt::format("is not a {} and was left unchanged", kind);
    case SQLITE_CORRUPT:
      return fmt::format("is damaged and was left unchanged ({})", reason);
    case SQLITE_FULL:
      return fmt::format("the disk is full ({}); earlier writes are kept", reason);
    default:
      return std::string(reason);
  }
}

}  // namespace

SqliteFile::SqliteFile(const std::filesystem::path& path, Kind kind, const Options& options)
    : path_(path.string()), kind_(std::move(kind)), patience_(options.patience) {
  std::error_code ignored;
  if (!options.create && !std::filesystem::exists(path, ignored)) {
    throw InputError(fmt::format("{}: no such {}", path_, kind_.name));
  }
  Run([&] {
    database_.emplace(path_, SQLite::OPEN_READWRITE | (options.create ? SQLite::OPEN_CREATE : 0),
                      static_cast<int>(patience_.picoseconds() / 1'000'000'000));
    Prepare();
  });
}

void SqliteFile::Fail(const SQLite::Exception& error) const {
  throw InputError(fmt::format("{}: {}", path_,
                               Explain(error.getErrorCode(), error.what(), kind_.name, patience_)));
}

int SqliteFile::Pragma(const char* name) {
  return database_->execAndGet(fmt::format("PRAGMA {}", name)).getInt();
}

void SqliteFile::Prepare() {
  if (Pragma("application_id") != kind_.application) {
    // Another process may create the tables at the same time.
    SQLite::Transaction transaction(*database_, SQLite::TransactionBehavior::IMMEDIATE);
    if (Pragma("application_id") == 0 && Pragma("schema_version") == 0) {
      database_->exec(kind_.schema);
      database_->exec(fmt::format("PRAGMA application_id = {}", kind_.application));
      database_->exec(fmt::format("PRAGMA user_version = {}", kind_.version));
      transaction.commit();
    }
  }
  if (Pragma("application_id") != kind_.application) {
    throw InputError(
        fmt::format("{}: is a database of another program, not a {}, and was left unchanged", path_,
                    kind_.name));
  }
  const int version = Pragma("user_version");
  if (version != kind_.version) {
    throw InputError(fmt::format("{}: is a {} of version {} (valid: {})", path_, kind_.name,
                                 version, kind_.version));
  }
  if (kind_.wal) {
    database_->exec("PRAGMA journal_mode = WAL");
    database_->exec("PRAGMA synchronous = NORMAL");
  }
}

}  // namespace spillway::sim
