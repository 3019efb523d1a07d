// A recording: the kernels that networks need, each measured once on the GPUs of this machine.
//
// What is known from before, from a table or from a benchmark store, is not measured again; what is
// measured goes to the store at once, so that nothing is lost if a later kernel fails.

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

#include "sim/core/cost_table.h"
#include "sim/cost/records/benchmark_store.h"
#include "traces/trace.h"

namespace spillway {

// A signature and a batch.
using EntryKey = std::pair<std::string, int64_t>;

// The batches that `texts` stand for where the mini-batch has `batch` samples, ascending: each is
// "powerOfTwo", "all", "undivided" or a number. REQUIRES: `MicroBatchProblem` finds none.
std::vector<int64_t> MicroBatchesOf(std::span<const std::string> texts, int64_t batch);

// What is wrong with such a text; empty if nothing is.
std::string MicroBatchProblem(const std::string& text);

// What the traces' slots need: each at the op's batch, and convolutions at those smaller ones of
// `micro_batches` besides.
std::set<EntryKey> NeededEntries(std::span<const Trace> traces,
                                 std::span<const int64_t> micro_batches);

// The network at this batch under each preset: what a table for all of them needs.
std::vector<Trace> LowerForAllPresets(const std::string& network, int64_t batch,
                                      bool training = true);

// Adds what `table` lacks of another one of the same GPU and library.
void AddMissing(const CostTable& other, CostTable& table);

// Measures the `wanted` entries of `trace`, all of which it has, on the GPU with CUDA's number
// `device`, and hands each one over as soon as it is known. Throws as `Record` of the CUDA backend.
using MeasureKernels =
    std::function<void(const Trace& trace, const std::set<EntryKey>& wanted, int device,
                       const std::function<void(const Provenance&, CostEntry)>& done)>;

class CostRecording {
 public:
  struct Options {
    std::string gpu;  // of this machine: that of all `devices`
    KernelLibrary library;
    // Each measures its share of the entries, at the same time as the others. Not empty.
    std::vector<int> devices{0};
    std::shared_ptr<BenchmarkStore> store;  // may be null
  };

  // Throws `InputError` if the store is of another GPU.
  CostRecording(Options options, MeasureKernels measure);

  // What is in the table counts as measured. Throws `InputError` that begins with `origin` if it is
  // of another GPU, cuDNN or arithmetic.
  void Keep(const CostTable& table, std::string_view origin);

  // The table of all that the traces need. Its provenance is the latest of its entries'; nothing
  // is in sequence. Throws as `measure`, and as the store's methods; what had been measured then is
  // kept.
  CostTable Table(std::string_view workload, std::span<const Trace> traces,
                  std::span<const int64_t> micro_batches);

 private:
  void Add(const Provenance& provenance, CostEntry entry);
  void Measure(const Trace& trace, const std::set<EntryKey>& wanted);

  Options options_;
  MeasureKernels measure_;
  std::mutex mutex_;  // of what follows and the store, while several GPUs measure
  std::map<EntryKey, BenchmarkStore::Found> known_;
};

// The table that a recording would give if it knew nothing but the store, with every smaller batch
// of a convolution that is there. Throws `InputError` that says what is missing.
CostTable TableFromStore(const BenchmarkStore& store, const KernelLibrary& library,
                         std::string_view workload, std::span<const Trace> traces);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_KERNEL_RECORDING_H_
