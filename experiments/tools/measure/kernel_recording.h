// Records the kernels that networks need. Each kernel is measured once on the GPUs of this machine.
//
// Entries that a table or a benchmark store already holds are not measured again. Each new entry
// goes to the store immediately, so that it is not lost if a later kernel fails.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_KERNEL_RECORDING_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_KERNEL_RECORDING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/run/case.h"
#include "sim/core/cost_table.h"
#include "sim/cost/records/benchmark_store.h"
#include "traces/trace.h"

namespace spillway::lab {

// The signature and the batch of an entry.
using EntryKey = std::pair<std::string, int64_t>;

// Returns the micro-batches that `texts` stand for, ascending, for a mini-batch of `batch` samples.
// Each text is "powerOfTwo", "all", "undivided" or a number. REQUIRES: `MicroBatchProblem` returns
// an empty string for each text.
std::vector<int64_t> MicroBatchesOf(std::span<const std::string> texts, int64_t batch);

// Returns an error message if the text of a micro-batch is invalid, otherwise an empty string.
std::string MicroBatchProblem(const std::string& text);

// Returns the entries that the slots of the traces need. Each slot needs an entry at the batch of
// its op. A slot of a convolution also needs one at each of the `micro_batches` below that batch.
std::set<EntryKey> NeededEntries(std::span<const Trace> traces,
                                 std::span<const int64_t> micro_batches);

// Returns the traces of the case's workload, one for each preset that has the case's optimizer. A
// table made from them serves all these presets. REQUIRES: the workload is a network.
std::vector<Trace> LowerForAllPresets(Case asked);

// Adds to `table` the entries of `other` that it lacks. REQUIRES: both tables are of the same GPU
// and library.
void AddMissing(const CostTable& other, CostTable& table);

// Measures the `wanted` entries of `trace` on the GPU with the CUDA number `device`. Calls `done`
// with each entry as soon as it is measured. REQUIRES: the trace has all `wanted` entries. Throws
// the errors of `Record` of the CUDA backend.
using MeasureKernels =
    std::function<void(const Trace& trace, const std::set<EntryKey>& wanted, int device,
                       const std::function<void(const Provenance&, CostEntry)>& done)>;

// A `CostRecording` makes cost tables. It measures the entries that it does not know yet.
class CostRecording {
 public:
  struct Options {
    std::string gpu;  // the name of the GPU; the same for all `devices`
    KernelLibrary library;
    // The CUDA numbers of the GPUs, which measure their shares of the entries at the same time. Not
    // empty.
    std::vector<int> devices{0};
    std::shared_ptr<BenchmarkStore> store;  // may be null
  };

  // Throws `InputError` if the store holds measurements of another GPU.
  CostRecording(Options options, MeasureKernels measure);

  // Marks the entries of `table` as known, so that they are not measured. Throws an `InputError`
  // that begins with `origin` if the table was recorded with another GPU, cuDNN or arithmetic.
  void Keep(const CostTable& table, std::string_view origin);

  // Returns the table of all entries that the traces need, and measures the unknown ones. Its
  // provenance is that of its latest entry, and its `in_sequence` is 0. Throws the errors of
  // `measure` and of the store. Entries measured before an error remain known.
  CostTable Table(std::string_view workload, std::span<const Trace> traces,
                  std::span<const int64_t> micro_batches);

 private:
  void Add(const Provenance& provenance, CostEntry entry);
  void Measure(const Trace& trace, const std::set<EntryKey>& wanted);

  Options options_;
  MeasureKernels measure_;
  std::mutex mutex_;  // protects `known_` and the store while several GPUs measure
  std::map<EntryKey, BenchmarkStore::Found> known_;
};

// Returns the table of the entries that the traces need, taken from the store alone. It includes
// every smaller batch of a convolution that the store holds. Throws an `InputError` that says which
// entries are missing.
CostTable TableFromStore(const BenchmarkStore& store, const KernelLibrary& library,
                         std::string_view workload, std::span<const Trace> traces);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_KERNEL_RECORDING_H_
