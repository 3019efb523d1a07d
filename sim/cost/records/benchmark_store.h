// The benchmark store: what was measured on one GPU, in one file for all networks and runs.
//
// A SQLite database, described in traces/FORMAT.md. An entry is found by its signature, which holds
// the whole geometry with groups, its batch, and the library: arithmetic and cuDNN version. The GPU
// is the file's; entries of another one are refused. Several processes may use one store at once:
// each call is one transaction, and of an entry that two have measured the first one stays. Only
// `Put` writes. A file that is no store, is damaged or is held by another program is left as it is.
//
// Every method may throw `InputError` that begins with the path: a file that cannot be opened, read
// or written, that is damaged, or that another process holds for longer than `patience`.

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

namespace spillway {

// What times depend on besides the GPU. The layout is NCHW everywhere.
struct KernelLibrary {
  std::string math;   // as in `Provenance`
  std::string cudnn;  // as in `Provenance`

  auto operator<=>(const KernelLibrary&) const = default;
};

KernelLibrary LibraryOf(const Provenance& provenance);

class BenchmarkStore {
 public:
  struct Options {
    bool create = true;  // where there is no file; otherwise that is an `InputError`
    Duration patience = Duration::Milliseconds(10'000);
  };

  // How many entries and kernels there are of a library.
  struct Holding {
    KernelLibrary library;
    int64_t entries = 0;
    int64_t kernels = 0;
  };

  // Also throws `InputError` for a database of another program or of a later version.
  explicit BenchmarkStore(std::filesystem::path path, const Options& options);
  explicit BenchmarkStore(std::filesystem::path path);
  ~BenchmarkStore();

  const std::filesystem::path& path() const { return path_; }

  // Of all entries; nullopt as long as there is none.
  std::optional<std::string> Gpu() const;

  // Throws `InputError` if the store is of another GPU.
  void RequireGpu(std::string_view gpu) const;

  // Sorted by library.
  std::vector<Holding> Holdings() const;

  // The batches that are there of a signature, ascending.
  std::vector<int64_t> Batches(const KernelLibrary& library, std::string_view signature) const;

  struct Found {
    CostEntry entry;
    Provenance provenance;
  };
  std::optional<Found> Find(const KernelLibrary& library, std::string_view signature,
                            int64_t batch) const;

  // `CostTable::in_sequence` of a workload, if it was put.
  std::optional<Duration> InSequence(const KernelLibrary& library, std::string_view workload) const;

  // Adds the entries of the table that are not there yet, and its `in_sequence` unless it is 0, all
  // or nothing. How many entries were added. Throws `InputError` if the store is of another GPU.
  int64_t Put(const CostTable& table);

 private:
  class Connection;

  std::filesystem::path path_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_RECORDS_BENCHMARK_STORE_H_
