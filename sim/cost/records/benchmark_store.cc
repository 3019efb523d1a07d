#include "sim/cost/records/benchmark_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>
#include <fmt/format.h>

#include <utility>

#include "sim/cost/records/sqlite_file.h"
#include "traces/base/error.h"

namespace spillway::sim {
namespace {

constexpr int kApplication = 0x53706c77;  // "Splw", the application id in the file's header
constexpr int kVersion = 1;               // the user version in the file's header

constexpr const char* kSchema = R"(
  CREATE TABLE gpu (name TEXT NOT NULL, one INTEGER PRIMARY KEY CHECK (one = 1)) STRICT;
  CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    signature TEXT NOT NULL, batch INTEGER NOT NULL, math TEXT NOT NULL, cudnn TEXT NOT NULL,
    driver TEXT NOT NULL, cuda TEXT NOT NULL, date TEXT NOT NULL, tool TEXT NOT NULL,
    UNIQUE (signature, batch, math, cudnn)) STRICT;
  CREATE TABLE kernels (
    entry INTEGER NOT NULL REFERENCES entries, position INTEGER NOT NULL,
    algorithm TEXT NOT NULL, time_ps INTEGER NOT NULL, workspace INTEGER NOT NULL,
    deterministic INTEGER NOT NULL, repeats INTEGER NOT NULL, spread REAL NOT NULL,
    PRIMARY KEY (entry, position)) STRICT, WITHOUT ROWID;
  CREATE TABLE sequences (
    workload TEXT NOT NULL, math TEXT NOT NULL, cudnn TEXT NOT NULL, in_sequence_ps INTEGER NOT NULL,
    PRIMARY KEY (workload, math, cudnn)) STRICT, WITHOUT ROWID;
)";

}  // namespace

KernelLibrary LibraryOf(const Provenance& provenance) {
  return {provenance.math, provenance.cudnn};
}

class BenchmarkStore::Connection : public SqliteFile {
  using SqliteFile::SqliteFile;
};

BenchmarkStore::BenchmarkStore(std::filesystem::path path)
    : BenchmarkStore(std::move(path), Options()) {}

BenchmarkStore::BenchmarkStore(std::filesystem::path path, const Options& options)
    : path_(std::move(path)),
      connection_(std::make_unique<Connection>(
          path_, SqliteFile::Kind{"benchmark store", kApplication, kVersion, kSchema},
          SqliteFile::Options{options.create, options.patience})) {}

BenchmarkStore::~BenchmarkStore() = default;

std::optional<std::string> BenchmarkStore::Gpu() const {
  return connection_->Run([&]() -> std::optional<std::string> {
    SQLite::Statement query = connection_->Query("SELECT name FROM gpu");
    if (!query.executeStep()) return std::nullopt;
    return query.getColumn(0).getString();
  });
}

void BenchmarkStore::RequireGpu(std::string_view gpu) const {
  const std::optional<std::string> own = Gpu();
  if (own && *own != gpu) {
    throw InputError(fmt::format("{}: holds measurements of {}, not of {}; name another store",
                                 path_.string(), *own, gpu));
  }
}

std::vector<BenchmarkStore::Holding> BenchmarkStore::Holdings() const {
  return connection_->Run([&] {
    SQLite::Statement query = connection_->Query(
        "SELECT math, cudnn, count(DISTINCT id), count(*) FROM entries JOIN kernels ON entry = id "
        "GROUP BY math, cudnn ORDER BY math, cudnn");
    std::vector<Holding> holdings;
    while (query.executeStep()) {
      holdings.push_back({{query.getColumn(0).getString(), query.getColumn(1).getString()},
                          query.getColumn(2).getInt64(),
                          query.getColumn(3).getInt64()});
    }
    return holdings;
  });
}

std::vector<int64_t> BenchmarkStore::Batches(const KernelLibrary& library,
                                             std::string_view signature) const {
  return connection_->Run([&] {
    SQLite::Statement query = connection_->Query(
        "SELECT batch FROM entries WHERE signature = ? AND math = ? AND cudnn = ? ORDER BY batch");
    SQLite::bind(query, std::string(signature), library.math, library.cudnn);
    std::vector<int64_t> batches;
    while (query.executeStep()) batches.push_back(query.getColumn(0).getInt64());
    return batches;
  });
}

std::optional<BenchmarkStore::Found> BenchmarkStore::Find(const KernelLibrary& library,
                                                          std::string_view signature,
                                                          int64_t batch) const {
  return connection_->Run([&]() -> std::optional<Found> {
    SQLite::Statement query = connection_->Query(
        "SELECT driver, cuda, date, tool, algorithm, time_ps, workspace, deterministic, repeats, "
        "spread FROM entries JOIN kernels ON entry = id WHERE signature = ? AND batch = ? AND "
        "math = ? AND cudnn = ? ORDER BY position");
    SQLite::bind(query, std::string(signature), batch, library.math, library.cudnn);
    std::optional<Found> found;
    while (query.executeStep()) {
      if (!found) {
        found = Found{
            {std::string(signature), batch, {}},
            {"", query.getColumn(0).getString(), query.getColumn(1).getString(), library.cudnn,
             library.math, query.getColumn(2).getString(), query.getColumn(3).getString()}};
      }
      found->entry.kernels.push_back(
          {{query.getColumn(4).getString(), Duration::Picoseconds(query.getColumn(5).getInt64()),
            Bytes(query.getColumn(6).getInt64()), query.getColumn(7).getInt() != 0},
           query.getColumn(8).getInt(),
           query.getColumn(9).getDouble()});
    }
    if (found) found->provenance.gpu = Gpu().value_or("");
    return found;
  });
}

std::optional<Duration> BenchmarkStore::InSequence(const KernelLibrary& library,
                                                   std::string_view workload) const {
  return connection_->Run([&]() -> std::optional<Duration> {
    SQLite::Statement query = connection_->Query(
        "SELECT in_sequence_ps FROM sequences WHERE workload = ? AND math = ? AND cudnn = ?");
    SQLite::bind(query, std::string(workload), library.math, library.cudnn);
    if (!query.executeStep()) return std::nullopt;
    return Duration::Picoseconds(query.getColumn(0).getInt64());
  });
}

int64_t BenchmarkStore::Put(const CostTable& table) {
  return connection_->Run([&] {
    SQLite::Transaction transaction(connection_->database(),
                                    SQLite::TransactionBehavior::IMMEDIATE);
    const Provenance& from = table.provenance;
    RequireGpu(from.gpu);
    SQLite::Statement gpu = connection_->Query("INSERT OR IGNORE INTO gpu VALUES (?, 1)");
    SQLite::bind(gpu, from.gpu);
    gpu.exec();
    SQLite::Statement add = connection_->Query(
        "INSERT OR IGNORE INTO entries (signature, batch, math, cudnn, driver, cuda, date, tool) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    SQLite::Statement kernel =
        connection_->Query("INSERT INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    int64_t added = 0;
    for (const CostEntry& entry : table.entries) {
      add.reset();
      SQLite::bind(add, entry.signature, entry.batch, from.math, from.cudnn, from.driver, from.cuda,
                   from.date, from.tool);
      if (add.exec() == 0) continue;
      ++added;
      const int64_t id = connection_->database().getLastInsertRowid();
      for (size_t i = 0; i < entry.kernels.size(); ++i) {
        const RecordedKernel& recorded = entry.kernels[i];
        kernel.reset();
        SQLite::bind(kernel, id, static_cast<int64_t>(i), recorded.kernel.algorithm,
                     recorded.kernel.time.picoseconds(), recorded.kernel.workspace.count(),
                     static_cast<int>(recorded.kernel.deterministic), recorded.repeats,
                     recorded.spread);
        kernel.exec();
      }
    }
    if (table.in_sequence != Duration()) {
      SQLite::Statement sequence =
          connection_->Query("INSERT OR IGNORE INTO sequences VALUES (?, ?, ?, ?)");
      SQLite::bind(sequence, table.workload, from.math, from.cudnn,
                   table.in_sequence.picoseconds());
      sequence.exec();
    }
    transaction.commit();
    return added;
  });
}

}  // namespace spillway::sim
