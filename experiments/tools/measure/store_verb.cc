// The verb `spillway store list|import|export` lists benchmark stores, and imports and exports cost
// tables.

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/run/cost_source.h"
#include "experiments/tools/measure/kernel_recording.h"
#include "sim/cost/records/benchmark_store.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {
namespace {

BenchmarkStore OpenStore(const std::string& path) {
  return BenchmarkStore(path, {.create = false});
}

void AddStorePath(Command& verb, std::string& path) {
  verb.Text("store", path, "Benchmark store, a SQLite file").Required();
}

struct HoldingRow : BenchmarkStore::Holding {
  std::string gpu;
};

Columns<HoldingRow> HoldingColumns() {
  return {
      {"gpu", "", "where all of it was measured", &HoldingRow::gpu},
      {"math", "", "arithmetic of convolutions and products",
       [](auto& row) { return row.library.math; }},
      {"cudnn", "", "version of the library", [](auto& row) { return row.library.cudnn; }},
      {"entries", "1", "operations, each at one batch", [](auto& row) { return row.entries; }},
      {"kernels", "1", "ways to execute them", [](auto& row) { return row.kernels; }},
  };
}

std::string FormatHoldings(const std::vector<HoldingRow>& rows) {
  if (rows.empty()) return "nothing yet\n";
  std::string text;
  for (const HoldingRow& row : rows) {
    text += fmt::format("{}, cuDNN {}, {}: {} kernels of {} entries\n", row.gpu, row.library.cudnn,
                        row.library.math, row.kernels, row.entries);
  }
  return text;
}

void AddHoldings(Command& store, Session& session) {
  struct Options {
    std::string path;
    FormatOption format;
  };
  Command& verb = store.Add("list", "List the contents of a store");
  verb.examples = {"store list kernels.sqlite", "store list kernels.sqlite --format json"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  options.format.Add(verb);
  verb.Runs([&options, &session] {
    const BenchmarkStore opened = OpenStore(options.path);
    std::vector<HoldingRow> rows;
    for (BenchmarkStore::Holding& holding : opened.Holdings()) {
      rows.push_back({std::move(holding), opened.Gpu().value_or("")});
    }
    return session.Finish(FormatAs(options.format.view(), HoldingColumns(), rows,
                                   "spillway.store/v1", [&] { return FormatHoldings(rows); }),
                          kOk);
  });
}

void AddImport(Command& store) {
  struct Options {
    std::string path;
    std::vector<std::string> tables;
  };
  Command& verb =
      store.Add("import", "Add cost tables of one GPU to a store, which is made if there is none");
  verb.examples = {
      "store import kernels.sqlite tables/vgg16-64.json.zst",
      "store import kernels.sqlite tables/vgg16-64.json.zst tables/vgg16-128.json.zst"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  verb.Texts("tables", options.tables, "Cost tables, as spillway record writes them").Required();
  verb.Runs([&options] {
    std::vector<CostTable> tables;
    for (const std::string& path : options.tables) tables.push_back(ReadCostTable(path));
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].provenance.gpu != tables[0].provenance.gpu) {
        throw InputError(fmt::format("{}: recorded on {}, but {} on {}: a store is of one GPU",
                                     options.tables[i], tables[i].provenance.gpu, options.tables[0],
                                     tables[0].provenance.gpu));
      }
    }
    BenchmarkStore opened(options.path);
    for (size_t i = 0; i < tables.size(); ++i) {
      fmt::print("{}: {} of {} entries are new\n", options.tables[i], opened.Put(tables[i]),
                 tables[i].entries.size());
    }
    return kOk;
  });
}

// Returns the only library in the store with this arithmetic and cuDNN version. An empty text
// matches any. Throws `UsageError` if none or several match.
KernelLibrary ChooseLibrary(const BenchmarkStore& store, const std::string& math,
                            const std::string& cudnn) {
  std::vector<KernelLibrary> fitting;
  std::vector<std::string> names;
  for (const BenchmarkStore::Holding& holding : store.Holdings()) {
    const KernelLibrary& library = holding.library;
    names.push_back(fmt::format("--math {} --cudnn {}", library.math, library.cudnn));
    if ((math.empty() || math == library.math) && (cudnn.empty() || cudnn == library.cudnn)) {
      fitting.push_back(library);
    }
  }
  if (fitting.size() == 1) return fitting[0];
  throw UsageError(fmt::format(
      "{}: {} (valid: {})", store.path().string(),
      fitting.empty() ? "no library matches" : "several libraries match, say which",
      names.empty() ? "nothing, it is empty" : fmt::format("{}", fmt::join(names, ", "))));
}

void AddExport(Command& store, Session& session) {
  struct Options {
    std::string path, output = ".", math, cudnn;
    std::vector<std::string> workloads;
  };
  Command& verb =
      store.Add("export", "Write the cost tables of workloads, as spillway record does");
  verb.examples = {"store export kernels.sqlite vgg16:64",
                   "store export kernels.sqlite vgg16:64 -o tables"};
  auto& options = verb.Keep<Options>();
  AddStorePath(verb, options.path);
  verb.Texts("workloads", options.workloads, "NETWORK:BATCH, one or more").Required();
  verb.Text("-o,--output", options.output, "Directory for NETWORK-BATCH.json.zst");
  verb.Text("--math", options.math, "Arithmetic, if the store holds several");
  verb.Text("--cudnn", options.cudnn, "Version of cuDNN, if the store holds several");
  verb.Runs([&options, &session] {
    std::vector<Workload> workloads;
    for (const std::string& text : options.workloads) workloads.push_back(ParseWorkload(text));
    const BenchmarkStore opened = OpenStore(options.path);
    const KernelLibrary library = ChooseLibrary(opened, options.math, options.cudnn);
    std::vector<CostTable> tables;
    for (const Workload& workload : workloads) {
      tables.push_back(TableFromStore(opened, library, workload.Name(),
                                      LowerForAllPresets({.workload = workload.Name()})));
    }
    CreateDirectory(options.output);
    for (size_t i = 0; i < tables.size(); ++i) {
      const std::filesystem::path path =
          std::filesystem::path(options.output) /
          RecordedTableName(workloads[i].network, workloads[i].batch);
      const auto guard = session.interrupts().Hold();
      WriteCostTable(tables[i], path);
      fmt::print("{}: {} entries\n", path.string(), tables[i].entries.size());
    }
    return kOk;
  });
}

}  // namespace

void AddStore(Command& program, Session& session) {
  Command& verb = program.Add(
      "store", "List, fill and read the benchmark stores that spillway record --store uses");
  AddHoldings(verb, session);
  AddImport(verb);
  AddExport(verb, session);
}

}  // namespace spillway::cli
