#include "experiments/tools/sweep/result_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include "sim/cost/records/sqlite_file.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr int kVersion = 1;  // the user version of the file

constexpr auto kDelay = std::chrono::milliseconds(50);

std::string SqlTypeOf(const Column<ResultRow>& column) {
  const std::string_view type = column.type;
  return type.starts_with("integer") || type.starts_with("boolean") ? "INTEGER"
         : type.starts_with("number")                               ? "REAL"
                                                                    : "TEXT";
}

// Returns columns for rows that correspond to the columns of a table of results.
template <typename T>
Columns<ResultRow> Stored(const Columns<T>& originals) {
  Columns<ResultRow> columns;
  for (size_t i = 0; i < originals.size(); ++i) {
    const Column<T>& original = originals[i];
    Column<ResultRow> column{original.name, original.unit, original.help,
                             [](const ResultRow&) { return std::string(); }, original.header};
    column.type = original.type;
    column.get = [i](const ResultRow& row) { return row[i]; };
    if (original.present) column.present = [i](const ResultRow& row) { return row[i] != Value(); };
    columns.push_back(std::move(column));
  }
  return columns;
}

template <typename T>
ResultRow ValuesOf(const Columns<T>& columns, const T& result) {
  ResultRow row;
  row.reserve(columns.size());
  for (const Column<T>& column : columns) {
    row.push_back(column.IsIn(result) ? column.get(result) : Value());
  }
  return row;
}

std::string NamesOfColumns(const StoreKind& kind) {
  std::string names;
  for (const Column<ResultRow>& column : kind.columns) names += ", " + column.name;
  return names;
}

std::string SchemaText(const StoreKind& kind) {
  std::string columns;
  for (const Column<ResultRow>& column : kind.columns) {
    columns += fmt::format(", {} {}", column.name, SqlTypeOf(column));
  }
  return fmt::format(R"(
    CREATE TABLE cells (key TEXT PRIMARY KEY NOT NULL, command TEXT NOT NULL{}) STRICT;
    CREATE TABLE inputs (
      id INTEGER PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL,
      UNIQUE (role, name, sha256)) STRICT;
    CREATE TABLE provenance (
      key TEXT PRIMARY KEY NOT NULL REFERENCES cells,
      trace INTEGER NOT NULL REFERENCES inputs, device INTEGER NOT NULL REFERENCES inputs,
      cost_table INTEGER NOT NULL REFERENCES inputs, policy INTEGER NOT NULL REFERENCES inputs,
      model INTEGER NOT NULL, program TEXT NOT NULL) STRICT, WITHOUT ROWID;
  )",
                     columns);
}

void BindValue(SQLite::Statement& statement, int index, const Value& value) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::same_as<T, std::monostate>) {
          statement.bind(index);
        } else if constexpr (std::same_as<T, bool>) {
          statement.bind(index, v ? 1 : 0);
        } else if constexpr (std::same_as<T, Nested>) {
          statement.bind(index, v.json);
        } else {
          statement.bind(index, v);
        }
      },
      value);
}

Value ReadValue(const SQLite::Column& column, std::string_view type) {
  if (column.isNull()) return {};
  if (type.starts_with("boolean")) return column.getInt() != 0;
  if (type.starts_with("integer")) return int64_t{column.getInt64()};
  if (type.starts_with("number")) return column.getDouble();
  if (type.starts_with("array")) return Nested{column.getString()};
  return column.getString();
}

// Returns the result columns of a queried row. They follow one other column.
ResultRow ReadRow(SQLite::Statement& query, const StoreKind& kind) {
  ResultRow row;
  row.reserve(kind.columns.size());
  for (size_t i = 0; i < kind.columns.size(); ++i) {
    row.push_back(ReadValue(query.getColumn(static_cast<int>(i) + 1), kind.columns[i].type));
  }
  return row;
}

}  // namespace

ResultRow RowOf(const RunResult& result) {
  static const Columns<RunResult> columns = ResultColumns();
  return ValuesOf(columns, result);
}

ResultRow RowOf(const ValidationResult& result) { return ValuesOf(ValidationColumns(), result); }

const StoreKind& SweepKind() {
  static const StoreKind kind = [] {
    StoreKind made{"sweep store",
                   0x53707377,  // "Spsw"
                   Stored(ResultColumns()),
                   "network, batch, preset, mode, device, memory_bytes, allocator, policy, key",
                   "spillway.results/v1",
                   {"policy", "best", "fits", "iteration_ms", "slowdown", "peak_allocated_bytes",
                    "allocator", "offloaded_bytes", "stall_ms"},
                   {"workload", "device", "memory_request", "preset", "mode", "attention",
                    "optimizer", "precision", "accumulate", "clip_norm", "loss_chunks", "file"}};
    for (Column<ResultRow>& column : made.columns) {
      if (column.header.empty() && std::ranges::count(made.shown, column.name) +
                                           std::ranges::count(made.cases, column.name) >
                                       0) {
        column.header = column.name;
      }
    }
    return made;
  }();
  return kind;
}

const StoreKind& ValidationKind() {
  static const StoreKind kind{
      "validation store",
      0x53707664,  // "Spvd"
      Stored(ValidationColumns()),
      "network, batch, preset, mode, device, memory_bytes, allocator, policy, key",
      "spillway.validation/v1",
      ShownOfValidations()};
  return kind;
}

const StoreKind& StoreKindOf(const std::filesystem::path& path) {
  constexpr std::streamoff kApplicationAt = 68;  // big-endian
  std::ifstream file(path, std::ios::binary);
  file.seekg(kApplicationAt);
  int application = 0;
  for (int i = 0; i < 4; ++i) application = application * 256 + std::max(file.get(), 0);
  return application == ValidationKind().application ? ValidationKind() : SweepKind();
}

Columns<ResultRow> RowColumns(const StoreKind& kind, const std::vector<ResultRow>& rows) {
  Columns<ResultRow> columns = kind.columns;
  for (Column<ResultRow>& column : columns) {
    if (!column.present) continue;
    const bool any = std::ranges::any_of(rows, column.present);
    column.present = [any](const ResultRow&) { return any; };
  }
  return columns;
}

class SweepStore::Connection {
 public:
  struct Pending {
    std::string key, command;
    ResultRow row;
    CellProvenance provenance;
  };

  Connection(const std::filesystem::path& path, Open open, const StoreKind& kind)
      : kind_(kind),
        file_(path, {kind.name, kind.application, kVersion, SchemaText(kind), true},
              {.create = open == Open::kCreate}) {
    Run([&] { CheckColumns(path); });
    Run([&] { find_.emplace(file_.Query("SELECT status, reason FROM cells WHERE key = ?")); });
    writer_ = std::thread([this] { Write(); });
  }

  ~Connection() {
    {
      const std::lock_guard lock(queue_mutex_);
      stopping_ = true;
    }
    queued_.notify_all();
    writer_.join();
  }

  // Returns the result of `action()`. No other thread uses the database during the call.
  template <typename Action>
  std::invoke_result_t<Action> Run(const Action& action) {
    const std::lock_guard lock(database_mutex_);
    return file_.Run(action);
  }

  SqliteFile& file() { return file_; }
  SQLite::Statement& find() { return *find_; }

  void Put(Pending cell) {
    {
      const std::lock_guard lock(queue_mutex_);
      if (error_) std::rethrow_exception(error_);
      queue_.push_back(std::move(cell));
    }
    queued_.notify_one();
  }

  void Commit() {
    std::unique_lock lock(queue_mutex_);
    hurry_ = true;
    queued_.notify_all();
    written_.wait(lock, [&] { return error_ || (queue_.empty() && !writing_); });
    hurry_ = false;
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void CheckColumns(const std::filesystem::path& path) {
    std::set<std::string> there;
    SQLite::Statement query = file_.Query("SELECT name FROM pragma_table_info('cells')");
    while (query.executeStep()) there.insert(query.getColumn(0).getString());
    for (const Column<ResultRow>& column : kind_.columns) {
      if (there.contains(column.name)) continue;
      throw InputError(fmt::format(
          "{}: is of a Spillway that has no result column '{}': sweep into a new store, "
          "or use the program that made this one",
          path.string(), column.name));
    }
  }

  // Returns the id of an input. Adds the input if it is new.
  int64_t IdOf(const char* role, const CellInput& input) {
    const auto [known, is_new] = ids_.try_emplace({role, input.name, input.sha256});
    if (!is_new) return known->second;
    SQLite::Statement add =
        file_.Query("INSERT OR IGNORE INTO inputs (role, name, sha256) VALUES (?, ?, ?)");
    SQLite::bind(add, std::string(role), input.name, input.sha256);
    add.exec();
    SQLite::Statement find =
        file_.Query("SELECT id FROM inputs WHERE role = ? AND name = ? AND sha256 = ?");
    SQLite::bind(find, std::string(role), input.name, input.sha256);
    find.executeStep();
    return known->second = find.getColumn(0).getInt64();
  }

  // Adds the cells in one transaction.
  void Add(const std::vector<Pending>& cells) {
    if (cells.empty()) return;
    const std::lock_guard lock(database_mutex_);
    file_.Run([&] {
      const Rollback rollback{ids_};
      SQLite::Transaction transaction(file_.database(), SQLite::TransactionBehavior::IMMEDIATE);
      if (!add_cell_) {
        const std::string marks = fmt::format(
            "{}", fmt::join(std::vector<std::string>(2 + cells[0].row.size(), "?"), ", "));
        add_cell_.emplace(
            file_.Query(fmt::format("INSERT OR IGNORE INTO cells (key, command{}) VALUES ({})",
                                    NamesOfColumns(kind_), marks)));
        add_provenance_.emplace(
            file_.Query("INSERT OR IGNORE INTO provenance VALUES (?, ?, ?, ?, ?, ?, ?)"));
      }
      for (const Pending& cell : cells) {
        add_cell_->reset();
        add_cell_->bind(1, cell.key);
        add_cell_->bind(2, cell.command);
        for (size_t i = 0; i < cell.row.size(); ++i) {
          BindValue(*add_cell_, static_cast<int>(i) + 3, cell.row[i]);
        }
        if (add_cell_->exec() == 0) continue;
        const CellProvenance& from = cell.provenance;
        add_provenance_->reset();
        SQLite::bind(*add_provenance_, cell.key, IdOf("trace", from.trace),
                     IdOf("device", from.device), IdOf("cost_table", from.cost_table),
                     IdOf("policy", from.policy), from.model, from.program);
        add_provenance_->exec();
      }
      transaction.commit();
      rollback.Keep();
    });
  }

  void Write() {
    std::unique_lock lock(queue_mutex_);
    while (true) {
      queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      queued_.wait_for(lock, kDelay, [&] { return stopping_ || hurry_; });
      if (queue_.empty()) return;
      writing_ = true;
      std::vector<Pending> cells;
      cells.swap(queue_);
      lock.unlock();
      std::exception_ptr error;
      try {
        Add(cells);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      writing_ = false;
      if (error) error_ = error;
      written_.notify_all();
    }
  }

  // A `Rollback` forgets the cached ids unless the transaction that may have created them succeeds.
  struct Rollback {
    using Ids = std::map<std::tuple<std::string, std::string, std::string>, int64_t>;
    Ids& ids;
    mutable bool keep = false;
    void Keep() const { keep = true; }
    ~Rollback() {
      if (!keep) ids.clear();
    }
  };

  const StoreKind& kind_;
  SqliteFile file_;
  std::mutex database_mutex_;
  Rollback::Ids ids_;
  std::optional<SQLite::Statement> find_, add_cell_, add_provenance_;

  std::mutex queue_mutex_;
  std::condition_variable queued_, written_;
  std::vector<Pending> queue_;
  std::exception_ptr error_;
  bool writing_ = false, hurry_ = false, stopping_ = false;
  std::thread writer_;
};

SweepStore::SweepStore(std::filesystem::path path, Open open, const StoreKind& kind)
    : path_(std::move(path)),
      kind_(kind),
      connection_(std::make_unique<Connection>(path_, open, kind)) {}

SweepStore::~SweepStore() = default;

std::optional<SweepStore::Status> SweepStore::StatusOf(std::string_view key) const {
  return connection_->Run([&] {
    SQLite::Statement& find = connection_->find();
    find.bind(1, std::string(key));
    std::optional<Status> status;
    if (find.executeStep()) {
      status = {find.getColumn(0).getString(), find.getColumn(1).getString()};
    }
    find.reset();  // an unfinished read would block writers
    return status;
  });
}

std::optional<ResultRow> SweepStore::RowOf(std::string_view key) const {
  return connection_->Run([&]() -> std::optional<ResultRow> {
    SQLite::Statement query = connection_->file().Query(
        fmt::format("SELECT key{} FROM cells WHERE key = ?", NamesOfColumns(kind_)));
    query.bind(1, std::string(key));
    if (!query.executeStep()) return std::nullopt;
    return ReadRow(query, kind_);
  });
}

int64_t SweepStore::Size() const {
  return connection_->Run([&]() -> int64_t {
    return connection_->file().database().execAndGet("SELECT count(*) FROM cells").getInt64();
  });
}

void SweepStore::Put(std::string key, std::string command, ResultRow row,
                     CellProvenance provenance) {
  connection_->Put({std::move(key), std::move(command), std::move(row), std::move(provenance)});
}

void SweepStore::Commit() { connection_->Commit(); }

int64_t SweepStore::Merge(const std::filesystem::path& other) {
  { const SweepStore checked(other, Open::kExisting, kind_); }
  return connection_->Run([&] {
    SQLite::Database& database = connection_->file().database();
    SQLite::Statement attach = connection_->file().Query("ATTACH ? AS other");
    attach.bind(1, other.string());
    attach.exec();
    int64_t added = 0;
    {
      SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
      database.exec(
          "INSERT OR IGNORE INTO main.inputs (role, name, sha256) "
          "SELECT role, name, sha256 FROM other.inputs ORDER BY id");
      const auto id = [](const char* role) {
        return fmt::format(
            "(SELECT mine.id FROM main.inputs mine JOIN other.inputs theirs USING (role, name, "
            "sha256) WHERE theirs.id = p.{})",
            role);
      };
      const std::string columns = NamesOfColumns(kind_);
      const std::string fresh = "NOT EXISTS (SELECT 1 FROM main.cells m WHERE m.key = p.key)";
      database.exec(
          fmt::format("INSERT INTO main.provenance SELECT key, {}, {}, {}, {}, model, program FROM "
                      "other.provenance p WHERE {}",
                      id("trace"), id("device"), id("cost_table"), id("policy"), fresh));
      added = database.exec(
          fmt::format("INSERT INTO main.cells (key, command{0}) SELECT key, command{0} FROM "
                      "other.cells p WHERE {1}",
                      columns, fresh));
      transaction.commit();
    }
    database.exec("DETACH other");
    return added;
  });
}

std::vector<SweepStore::Entry> SweepStore::Read() const {
  return connection_->Run([&] {
    std::vector<Entry> entries;
    SQLite::Statement query = connection_->file().Query(
        fmt::format("SELECT command{} FROM cells ORDER BY {}", NamesOfColumns(kind_), kind_.order));
    while (query.executeStep()) {
      entries.push_back({query.getColumn(0).getString(), ReadRow(query, kind_)});
    }
    return entries;
  });
}

std::vector<SweepStore::Holding> SweepStore::Holdings() const {
  return connection_->Run([&] {
    SQLite::Statement query = connection_->file().Query(
        "SELECT policy, status, reason, count(*) FROM cells GROUP BY policy, status, reason "
        "ORDER BY policy");
    std::vector<Holding> holdings;
    while (query.executeStep()) {
      const std::string policy = query.getColumn(0).getString();
      if (holdings.empty() || holdings.back().policy != policy) holdings.push_back({policy});
      Holding& holding = holdings.back();
      const std::string status = query.getColumn(1).getString();
      const int64_t count = query.getColumn(3).getInt64();
      holding.cells += count;
      (status == "ok" ? holding.ok : status == "oom" ? holding.oom : holding.failed) += count;
      if (status == "failed") holding.failures[query.getColumn(2).getString()] = count;
    }
    return holdings;
  });
}

void SweepStore::CopyTo(const std::filesystem::path& to) const {
  const std::filesystem::path temporary = to.string() + fmt::format(".tmp{}", ::getpid());
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  connection_->Run([&] {
    SQLite::Statement copy = connection_->file().Query("VACUUM INTO ?");
    copy.bind(1, temporary.string());
    copy.exec();
  });
  std::error_code error;
  std::filesystem::rename(temporary, to, error);
  if (!error) return;
  std::filesystem::remove(temporary, ignored);
  throw InputError(fmt::format("{}: cannot be written: {}", to.string(), error.message()));
}

}  // namespace spillway::lab
