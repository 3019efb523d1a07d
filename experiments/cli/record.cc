// spillway record: measure a network's kernels on the GPU of this machine.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "backend/backends.h"
#include "experiments/catalogue.h"
#include "experiments/cli/verbs.h"
#include "sim/core/error.h"
#include "sim/cost/table.h"
#include "traces/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {
namespace {

struct RecordCommand {
  std::vector<std::string> workloads;
  std::string output = "traces/recorded/h200";
  RecordOptions record;
  bool quiet = false;
};

// Shows which entry is being measured on a terminal, and every note on a line of its own.
void ShowProgress(const RecordProgress& progress) {
  const bool terminal = isatty(fileno(stderr)) == 1;
  if (!progress.note.empty()) {
    fmt::print(stderr, "{}{} batch {}: {}\n", terminal ? "\r\033[K" : "", progress.signature,
               progress.batch, progress.note);
  } else if (terminal) {
    fmt::print(stderr, "\r\033[K[{}/{}] {}", progress.entry + 1, progress.entries,
               progress.signature);
  }
}

// One table with what every preset needs: the presets share most operations.
CostTable RecordAllPresets(const Workload& workload, const RecordOptions& options) {
  const Network network = BuildNetwork(workload.network);
  CostTable table;
  std::set<std::string> recorded;
  for (const Preset& preset : Presets()) {
    Trace trace = LowerNetwork(network, {workload.batch, preset.name, true});
    std::erase_if(trace.ops, [&](const Op& op) {
      return std::all_of(op.slots.begin(), op.slots.end(),
                         [&](const Slot& slot) { return recorded.contains(slot.signature); });
    });
    if (trace.ops.empty()) continue;
    CostTable part = RecordCosts(trace, options);
    for (CostEntry& entry : part.entries) {
      if (recorded.insert(entry.signature).second || entry.batch != workload.batch) {
        table.entries.push_back(std::move(entry));
      }
    }
    table.provenance = std::move(part.provenance);
  }
  table.workload = workload.Name();
  return table;
}

int Execute(const RecordCommand& command) {
  std::vector<Workload> workloads;
  for (const std::string& text : command.workloads) workloads.push_back(ParseWorkload(text));
  std::filesystem::create_directories(command.output);
  for (const Workload& workload : workloads) {
    const CostTable table = RecordAllPresets(workload, command.record);
    const std::filesystem::path path =
        std::filesystem::path(command.output) /
        fmt::format("{}-{}.json.zst", workload.network, workload.batch);
    WriteCostTable(table, path);
    fmt::print("{}: {} entries, {}, cuDNN {}, {}\n", path.string(), table.entries.size(),
               table.provenance.gpu, table.provenance.cudnn, table.provenance.math);
  }
  return kOk;
}

}  // namespace

void AddRecord(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "record", "Measure the kernels of networks on this machine's GPU; exit code 5 without one");
  auto command = std::make_shared<RecordCommand>();
  verb->add_option("workloads", command->workloads, "NETWORK:BATCH, one or more")->required();
  verb->add_option("-o,--output", command->output, "Directory for NETWORK-BATCH.json.zst")
      ->capture_default_str();
  verb->add_option("--math", command->record.math, "Arithmetic of convolutions and products")
      ->check(CLI::IsMember({"fp32", "tf32"}))
      ->capture_default_str();
  verb->add_option("--min-repeats", command->record.min_repeats, "Least repeats of each kernel")
      ->check(CLI::Range(5, 10000))
      ->capture_default_str();
  verb->add_option("--micro-batch", command->record.micro_batches,
                   "Also record convolutions at this smaller batch; repeat for more");
  verb->add_option("--seed", command->record.seed, "Seed of the random operands")
      ->capture_default_str();
  verb->add_flag("--quiet", command->quiet, "No progress on standard error");
  verb->callback([command, &exit_code] {
    if (!command->quiet) command->record.progress = ShowProgress;
    exit_code = Execute(*command);
  });
}

}  // namespace spillway::cli
