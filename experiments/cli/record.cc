// spillway record: measure a network's kernels on the GPU of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "backend/cuda/recorder.h"
#include "experiments/calibrate/calibration.h"
#include "experiments/cli/options.h"
#include "experiments/cli/progress.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/execute.h"
#include "experiments/validate/validation.h"
#include "policies/kernels/micro_batch.h"
#include "sim/cost/table.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"
#include "traces/ops/table.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {
namespace {

struct RecordCommand {
  std::vector<std::string> workloads;
  std::string output = "traces/recorded/h200";
  RecordOptions record;
  std::vector<std::string> micro_batches;
  bool add = false;
};

// The named way to choose micro-batches; nullopt if the text is no such name.
std::optional<MicroBatches> NamedMicroBatches(const std::string& text) {
  for (const auto& [name, batches] : kMicroBatchNames) {
    if (name == text) return batches;
  }
  return std::nullopt;
}

// A batch, or such a name: what is wrong with it.
std::string CheckMicroBatch(const std::string& text) {
  if (NamedMicroBatches(text)) return {};
  int64_t batch = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), batch);
  const bool good = error == std::errc() && end == text.data() + text.size() && batch >= 1 &&
                    batch <= kLargestBatch;
  return good ? std::string()
              : fmt::format("'{}' is no micro-batch (valid: {}, or a batch from 1 to {})", text,
                            fmt::join(std::views::keys(kMicroBatchNames), ", "), kLargestBatch);
}

// What they stand for where the mini-batch has `batch` samples. REQUIRES: they are checked.
std::vector<int64_t> MicroBatchesOf(const std::vector<std::string>& texts, int64_t batch) {
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

// What has been measured in this process, by signature and batch: networks and presets share most
// operations.
using Measured = std::map<std::pair<std::string, int64_t>, CostEntry>;

// One table with what every preset needs for the workload.
CostTable RecordAllPresets(const Workload& workload, const RecordOptions& options,
                           Measured& measured, Provenance& provenance) {
  const Network network = BuildNetwork(workload.network);
  std::set<std::pair<std::string, int64_t>> needed;
  for (const Preset& preset : Presets()) {
    Trace trace = LowerNetwork(network, {workload.batch, preset.name, true});
    std::erase_if(trace.ops, [&](const Op& op) {
      bool known = true;
      const auto need = [&](const std::string& signature, int64_t batch) {
        const auto key = *needed.emplace(signature, batch).first;
        known = known && measured.contains(key);
      };
      for (const Slot& slot : op.slots) {
        need(slot.signature, op.batch);
        for (const int64_t batch : options.micro_batches) {
          if (RowOf(op.type).algorithms && batch < op.batch) need(slot.signature, batch);
        }
      }
      return known;
    });
    if (trace.ops.empty()) continue;
    CostTable part = Record(trace, options);
    provenance = part.provenance;
    for (CostEntry& entry : part.entries) {
      measured.try_emplace({entry.signature, entry.batch}, std::move(entry));
    }
  }
  CostTable table{workload.Name(), provenance, {}, {}};
  for (const auto& key : needed) {
    const auto entry = measured.find(key);
    if (entry != measured.end()) table.entries.push_back(entry->second);
  }
  return table;
}

// What the table at `path` holds, if there is one, counts as measured. Its `in_sequence`.
std::optional<Duration> KeepTable(const std::filesystem::path& path, const RecordOptions& options,
                                  Measured& measured, Provenance& provenance) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  CostTable table = ReadCostTable(path);
  if (table.provenance.math != options.math) {
    throw InputError(fmt::format("{}: recorded with {}, not {}", path.string(),
                                 table.provenance.math, options.math));
  }
  provenance = table.provenance;
  for (CostEntry& entry : table.entries) {
    std::pair key{entry.signature, entry.batch};
    measured.try_emplace(std::move(key), std::move(entry));
  }
  return table.in_sequence;
}

// Throws `InputError` if a table that was kept is of another GPU or cuDNN.
void CheckSameMachine(const Provenance& kept, const Provenance& now,
                      const std::filesystem::path& path) {
  if (kept.gpu.empty() || (kept.gpu == now.gpu && kept.cudnn == now.cudnn)) return;
  throw InputError(fmt::format("{}: recorded on {}, cuDNN {}; this is {}, cuDNN {}", path.string(),
                               kept.gpu, kept.cudnn, now.gpu, now.cudnn));
}

// What an in-core iteration is predicted for: of the GPU's device file, if there is one, no kernel
// time depends on.
Device DeviceOf(const CudaMachine& machine) {
  Device device = LoadDevice("h200");
  for (const std::string& name : DeviceNames()) {
    const Device known = LoadDevice(name);
    if (Describes(known, machine.gpu())) device = known;
  }
  device.memory = std::min(device.memory, RoundDown(machine.free_memory(), Bytes::GiB(1)));
  return device;
}

int Execute(RecordCommand command, Session& session) {
  ProgressBar& bar = session.progress();
  command.record.progress = [&](const RecordProgress& progress) {
    if (!progress.note.empty()) {
      bar.Note(fmt::format("{} batch {}: {}", progress.signature, progress.batch, progress.note));
    } else {
      bar.Set(progress.entry, progress.entries, progress.signature);
    }
  };
  std::vector<Workload> workloads;
  for (const std::string& text : command.workloads) workloads.push_back(ParseWorkload(text));
  DescribeCudaDevice();  // without a GPU nothing is left behind
  CreateDirectory(command.output);
  const auto machine = std::make_shared<CudaMachine>(
      CudaMachine::Options{0, command.record.math, command.record.seed});
  CudaRun run;
  run.digest = false;
  BackendFactories backends;
  backends.Add("cuda", CudaFactory(machine, run));
  const Device device = DeviceOf(*machine);
  Measured measured;
  Provenance provenance;
  for (const Workload& workload : workloads) {
    const std::filesystem::path path =
        std::filesystem::path(command.output) /
        fmt::format("{}-{}.json.zst", workload.network, workload.batch);
    Provenance kept;
    std::optional<Duration> in_sequence;
    if (command.add) in_sequence = KeepTable(path, command.record, measured, kept);
    command.record.micro_batches = MicroBatchesOf(command.micro_batches, workload.batch);
    if (provenance.gpu.empty()) provenance = kept;
    CostTable table = RecordAllPresets(workload, command.record, measured, provenance);
    CheckSameMachine(kept, table.provenance, path);
    if (!in_sequence) {
      in_sequence = MeasureInSequence(table, LoadWorkload(workload.Name(), WorkloadOptions()),
                                      device, backends);
    }
    table.in_sequence = *in_sequence;
    const auto guard = session.interrupts().Hold();
    WriteCostTable(table, path);
    bar.Wipe();
    fmt::print("{}: {} entries, {}, cuDNN {}, {}; {} more per kernel in a sequence\n",
               path.string(), table.entries.size(), table.provenance.gpu, table.provenance.cudnn,
               table.provenance.math, FormatDuration(table.in_sequence));
  }
  return kOk;
}

}  // namespace

void AddRecord(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "record", "Measure the kernels of networks on this machine's GPU; exit code 5 without one");
  auto command = std::make_shared<RecordCommand>();
  verb->add_option("workloads", command->workloads, "NETWORK:BATCH, one or more")->required();
  verb->add_option(
          "-o,--output", command->output,
          "Directory for NETWORK-BATCH.json.zst, which --cost reads; a table that is there is "
          "replaced")
      ->capture_default_str();
  verb->add_option("--math", command->record.math, "Arithmetic of convolutions and products")
      ->check(CLI::IsMember({"fp32", "tf32"}))
      ->capture_default_str();
  verb->add_option("--min-repeats", command->record.min_repeats, "Least repeats of each kernel")
      ->check(CLI::Range(5, 10000))
      ->capture_default_str();
  verb->add_option(
          "--micro-batch", command->micro_batches,
          "Also record convolutions at smaller batches: powerOfTwo (1, 2, 4 and so on), all, "
          "undivided (none), or a number; repeat for more")
      ->check(CLI::Validator(CheckMicroBatch, "powerOfTwo|all|undivided|BATCH"));
  verb->add_option("--seed", command->record.seed, "Seed of the random operands")
      ->check(NotNegative())
      ->capture_default_str();
  verb->add_flag("--add", command->add,
                 "Keep what the tables in the directory hold and record only what they lack");
  verb->callback([command, &exit_code, &session] { exit_code = Execute(*command, session); });
}

}  // namespace spillway::cli
