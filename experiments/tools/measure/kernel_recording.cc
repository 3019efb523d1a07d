#include "experiments/tools/measure/kernel_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <numeric>
#include <optional>
#include <tuple>

#include "experiments/run/inputs.h"
#include "policies/kernels/micro_batch.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/ops/op_table.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

// Returns the way to choose micro-batches that has this name, or nullopt if none has.
std::optional<MicroBatches> NamedMicroBatches(const std::string& text) {
  for (const auto& [name, batches] : kMicroBatchNames) {
    if (name == text) return batches;
  }
  return std::nullopt;
}

// Returns a table with the entries in the given order and the provenance of the latest entry.
CostTable MakeTable(std::string_view workload, std::span<const BenchmarkStore::Found> found) {
  CostTable table;
  table.workload = workload;
  for (const BenchmarkStore::Found& each : found) {
    if (table.entries.empty() || each.provenance.date > table.provenance.date) {
      table.provenance = each.provenance;
    }
    table.entries.push_back(each.entry);
  }
  return table;
}

}  // namespace

std::string MicroBatchProblem(const std::string& text) {
  if (NamedMicroBatches(text)) return {};
  int64_t batch = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), batch);
  const bool good = error == std::errc() && end == text.data() + text.size() && batch >= 1 &&
                    batch <= kLargestBatch;
  return good ? std::string()
              : fmt::format("'{}' is no micro-batch (valid: {}, or a batch from 1 to {})", text,
                            ListOfMicroBatches(), kLargestBatch);
}

std::vector<int64_t> MicroBatchesOf(std::span<const std::string> texts, int64_t batch) {
  std::vector<int64_t> available(static_cast<size_t>(batch));
  std::iota(available.begin(), available.end(), 1);
  std::set<int64_t> batches;
  for (const std::string& text : texts) {
    if (const auto named = NamedMicroBatches(text)) {
      const std::vector<int64_t> chosen = ChooseBatches(*named, available);
      batches.insert(chosen.begin(), chosen.end());
    } else {
      batches.insert(std::stoll(text));
    }
  }
  return {batches.begin(), batches.end()};
}

std::set<EntryKey> NeededEntries(std::span<const Trace> traces,
                                 std::span<const int64_t> micro_batches) {
  std::set<EntryKey> needed;
  for (const Trace& trace : traces) {
    for (const Op& op : trace.ops) {
      for (const Slot& slot : op.slots) {
        needed.emplace(slot.signature, op.batch);
        if (!RowOf(op.type).algorithms) continue;
        for (const int64_t batch : micro_batches) {
          if (batch < op.batch) needed.emplace(slot.signature, batch);
        }
      }
    }
  }
  return needed;
}

std::vector<Trace> LowerForAllPresets(Case asked) {
  std::vector<Trace> traces;
  for (const Preset& preset : Presets()) {
    const bool own_update = preset.update != Update::kSeparate;
    if (own_update && asked.optimizer.value_or(preset.update_rule) != preset.update_rule) continue;
    asked.preset = preset.name;
    traces.push_back(LoadTrace(asked));
  }
  return traces;
}

void AddMissing(const CostTable& other, CostTable& table) {
  std::set<EntryKey> there;
  for (const CostEntry& entry : table.entries) there.emplace(entry.signature, entry.batch);
  for (const CostEntry& entry : other.entries) {
    if (!there.contains({entry.signature, entry.batch})) table.entries.push_back(entry);
  }
  std::ranges::sort(table.entries, {},
                    [](const CostEntry& entry) { return std::tie(entry.signature, entry.batch); });
}

CostRecording::CostRecording(Options options, MeasureKernels measure)
    : options_(std::move(options)), measure_(std::move(measure)) {
  SPILLWAY_CHECK(!options_.devices.empty());
  if (options_.store) options_.store->RequireGpu(options_.gpu);
}

void CostRecording::Keep(const CostTable& table, std::string_view origin) {
  const Provenance& from = table.provenance;
  if (from.gpu != options_.gpu || LibraryOf(from) != options_.library) {
    throw InputError(fmt::format("{}: recorded on {}, cuDNN {}, {}; this is {}, cuDNN {}, {}",
                                 origin, from.gpu, from.cudnn, from.math, options_.gpu,
                                 options_.library.cudnn, options_.library.math));
  }
  for (const CostEntry& entry : table.entries) {
    known_.try_emplace({entry.signature, entry.batch}, BenchmarkStore::Found{entry, from});
  }
}

CostTable CostRecording::Table(std::string_view workload, std::span<const Trace> traces,
                               std::span<const int64_t> micro_batches) {
  for (const Trace& trace : traces) {
    std::set<EntryKey> wanted;
    for (const EntryKey& key : NeededEntries({&trace, 1}, micro_batches)) {
      if (known_.contains(key)) continue;
      auto found = options_.store ? options_.store->Find(options_.library, key.first, key.second)
                                  : std::nullopt;
      if (found) {
        known_.emplace(key, std::move(*found));
      } else {
        wanted.insert(key);
      }
    }
    if (!wanted.empty()) Measure(trace, wanted);
  }
  std::vector<BenchmarkStore::Found> entries;
  for (const EntryKey& key : NeededEntries(traces, micro_batches)) {
    entries.push_back(known_.at(key));
  }
  return MakeTable(workload, entries);
}

void CostRecording::Measure(const Trace& trace, const std::set<EntryKey>& wanted) {
  const auto done = [&](const Provenance& provenance, CostEntry entry) {
    Add(provenance, std::move(entry));
  };
  if (options_.devices.size() == 1) return measure_(trace, wanted, options_.devices[0], done);
  std::vector<std::set<EntryKey>> shares(options_.devices.size());
  size_t next = 0;
  for (const EntryKey& key : wanted) shares[next++ % shares.size()].insert(key);
  std::vector<std::future<void>> running;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].empty()) continue;
    running.push_back(std::async(
        std::launch::async, [&, i] { measure_(trace, shares[i], options_.devices[i], done); }));
  }
  for (std::future<void>& each : running) each.wait();  // all finish even if one throws
  for (std::future<void>& each : running) each.get();
}

void CostRecording::Add(const Provenance& provenance, CostEntry entry) {
  const std::lock_guard lock(mutex_);
  EntryKey key{entry.signature, entry.batch};
  BenchmarkStore::Found found{std::move(entry), provenance};
  if (options_.store) {
    options_.store->Put({"", provenance, {}, {found.entry}});
    // If another process has already put this entry, use its measurement.
    found = options_.store->Find(options_.library, key.first, key.second).value();
  }
  known_.insert_or_assign(std::move(key), std::move(found));
}

CostTable TableFromStore(const BenchmarkStore& store, const KernelLibrary& library,
                         std::string_view workload, std::span<const Trace> traces) {
  std::set<int64_t> batches;
  std::vector<EntryKey> missing;
  const std::set<EntryKey> own = NeededEntries(traces, {});
  std::map<EntryKey, BenchmarkStore::Found> found;
  for (const EntryKey& key : own) {
    auto entry = store.Find(library, key.first, key.second);
    if (entry) {
      found.emplace(key, std::move(*entry));
      for (const int64_t batch : store.Batches(library, key.first)) batches.insert(batch);
    } else {
      missing.push_back(key);
    }
  }
  if (!missing.empty()) {
    throw InputError(
        fmt::format("{}: lacks {} of the {} operations of {} in {} with cuDNN {}, "
                    "such as '{}' at batch {}; measure them with spillway record {} "
                    "--store",
                    store.path().string(), missing.size(), own.size(), workload, library.math,
                    library.cudnn, missing[0].first, missing[0].second, workload));
  }
  const std::vector<int64_t> smaller(batches.begin(), batches.end());
  for (const EntryKey& key : NeededEntries(traces, smaller)) {
    if (found.contains(key)) continue;
    auto entry = store.Find(library, key.first, key.second);
    if (entry) found.emplace(key, std::move(*entry));
  }
  std::vector<BenchmarkStore::Found> entries;
  for (auto& [key, entry] : found) entries.push_back(std::move(entry));
  CostTable table = MakeTable(workload, entries);
  table.in_sequence = store.InSequence(library, workload).value_or(Duration());
  return table;
}

}  // namespace spillway::lab
