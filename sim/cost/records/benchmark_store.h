// The benchmark store: the measurements of one GPU, in one file for all networks and runs.
//
// It is a SQLite database, described in traces/FORMAT.md. The key of an entry is its signature,
// which holds the whole geometry with groups, its batch, and the library: arithmetic and cuDNN
// version. The file belongs to one GPU, and entries of another GPU are refused. Several processes
// may use one store at the same time: each call is one transaction. If two processes have measured
// an entry, the first one stays. Only `Put` writes. A file that is not a store, is damaged or is
// held by another program is left unchanged.
//
// Every method may throw `InputError` that begins with the path: if the file cannot be opened, read
// or written, is damaged, or is held by another process for longer than `patience`.

#ifndef SPILLWAY_SIM_COST_RECORDS_BENCHMARK_STORE_H_
#define SPILLWAY_SIM_COST_RECORDS_BENCHMARK_STORE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_table.h"
#include "traces/base/units.h"

namespace spillway::sim {

// The values, in addition to the GPU, on which times depend. The layout is always NCHW.
struct KernelLibrary {
  std::string math;   // see `Provenance`
  std::string cudnn;  // see `Provenance`

  auto operator<=>(const KernelLibrary&) const = default;
};

KernelLibrary LibraryOf(const Provenance& provenance);

class BenchmarkStore {
 public:
  struct Options {
    bool create = true;  // creates a missing file; if false, a missing file is an `InputError`
    Duration patience = Duration::Milliseconds(10'000);
  };

  // The number of entries and kernels of one library.
  struct Holding {
    KernelLibrary library;
    int64_t entries = 0;
    int64_t kernels = 0;
  };

  // Throws `InputError` for a database of another program or version.
  explicit BenchmarkStore(std::filesystem::path path, const Options& options);
  explicit BenchmarkStore(std::filesystem::path path);
  ~BenchmarkStore();

  const std::filesystem::path& path() const { return path_; }

  // Returns the GPU of all entries; nullopt if there is no entry.
  std::optional<std::string> Gpu() const;

  // Throws `InputError` if the store belongs to another GPU.
  void RequireGpu(std::string_view gpu) const;

  // Returns the holdings, sorted by library.
  std::vector<Holding> Holdings() const;

  // Returns the batches of a signature, ascending.
  std::vector<int64_t> Batches(const KernelLibrary& library, std::string_view signature) const;

  struct Found {
    CostEntry entry;
    Provenance provenance;
  };
  std::optional<Found> Find(const KernelLibrary& library, std::string_view signature,
                            int64_t batch) const;

  // Returns `CostTable::in_sequence` of a workload; nullopt if it was never put.
  std::optional<Duration> InSequence(const KernelLibrary& library, std::string_view workload) const;

  // Adds the entries of the table that are not in the store, and its `in_sequence` unless it is 0.
  // Adds all or nothing. Returns the number of entries added. Throws `InputError` if the store
  // belongs to another GPU.
  int64_t Put(const CostTable& table);

 private:
  class Connection;

  std::filesystem::path path_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_RECORDS_BENCHMARK_STORE_H_
