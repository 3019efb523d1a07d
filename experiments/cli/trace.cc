// spillway trace build|info|validate: trace files.

#include <fmt/format.h>

#include <algorithm>

#include "experiments/cli/options.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/run/catalogue.h"
#include "sim/core/report.h"
#include "traces/format.h"

namespace spillway::cli {
namespace {

Columns<Trace> InfoColumns() {
  const auto ops_in = [](Phase phase) {
    return [phase](const Trace& trace) {
      return std::count_if(trace.ops.begin(), trace.ops.end(),
                           [&](const Op& op) { return op.phase == phase; });
    };
  };
  Columns<Trace> columns{
      {"workload", "", "network and batch, or the name in the file", &Trace::name},
      {"network", "", "its name", &Trace::network},
      {"batch", "1", "images per iteration", &Trace::batch},
      {"preset", "", "how memory is counted", &Trace::preset},
      {"mode", "", "training or inference",
       [](auto& trace) { return trace.training ? "training" : "inference"; }},
      {"layers", "1", "of the network", [](auto& trace) { return trace.layers.size(); }},
      {"tensors", "1", "aliases included", [](auto& trace) { return trace.tensors.size(); }},
      {"ops", "1", "of one iteration", [](auto& trace) { return trace.ops.size(); }},
      {"forward_ops", "1", "of these", ops_in(Phase::kForward)},
      {"backward_ops", "1", "of these", ops_in(Phase::kBackward)},
      {"update_ops", "1", "of these", ops_in(Phase::kUpdate)},
      {"gflops", "1e9", "operations of one iteration",
       [](auto& trace) {
         int64_t flops = 0;
         for (const Op& op : trace.ops) flops += op.flops();
         return static_cast<double>(flops) / 1e9;
       }},
  };
  for (const std::string_view name : TensorKindNames()) {
    columns.push_back({fmt::format("{}_bytes", name), "B", "tensors of this kind",
                       [kind = ParseTensorKind(name)](const Trace& trace) {
                         Bytes size;
                         for (const Tensor& tensor : trace.tensors) {
                           if (tensor.kind == kind && !tensor.alias_of) size += tensor.size;
                         }
                         return size;
                       }});
  }
  columns.push_back({"bound_layer_bytes", "B", "the least that any layer-wise policy needs",
                     [](auto& trace) { return LayerBound(trace, Bytes(512)); }});
  return columns;
}

std::string FormatInfo(const Trace& trace) {
  std::string text;
  for (const Column<Trace>& column : InfoColumns()) {
    std::string value;
    AppendCsv(value, column.get(trace));
    if (column.unit == "B") {
      value += fmt::format(" ({})", FormatBytes(Bytes(std::get<int64_t>(column.get(trace)))));
    }
    text += fmt::format("{:<26}{}\n", column.name, value);
  }
  return text;
}

void AddBuild(CLI::App& trace, Session& session) {
  struct Options {
    WorkloadOption workload;
    std::string output = "-";
  };
  CLI::App* verb = trace.add_subcommand("build", "Lower a network and write its trace");
  auto options = std::make_shared<Options>();
  options->workload.Add(*verb);
  verb->add_option("-o,--output", options->output,
                   "File to write, compressed if it ends in .zst; - for standard output")
      ->capture_default_str();
  verb->callback([options, &session] {
    const Trace built = options->workload.Load();
    if (options->output == "-") {
      fmt::print("{}", FormatTrace(built));
    } else {
      const auto guard = session.interrupts().Hold();
      WriteTrace(built, options->output);
    }
  });
}

void AddInfo(CLI::App& trace, Session& session) {
  struct Options {
    WorkloadOption workload;
    FormatOption format;
  };
  CLI::App* verb = trace.add_subcommand("info", "Count tensors, ops, bytes and operations");
  auto options = std::make_shared<Options>();
  options->workload.Add(*verb);
  options->format.Add(*verb);
  verb->callback([options, &session] {
    const Trace loaded = options->workload.Load();
    session.Print(FormatAs(options->format.format(), InfoColumns(), {&loaded, 1},
                           "spillway.trace-info/v1", [&] { return FormatInfo(loaded); }));
  });
}

void AddValidate(CLI::App& trace) {
  CLI::App* verb =
      trace.add_subcommand("validate", "Check trace files; exit code 3 at the first bad one");
  auto paths = std::make_shared<std::vector<std::string>>();
  verb->add_option("files", *paths, "Trace files")->required();
  verb->callback([paths] {
    for (const std::string& path : *paths) {
      const Trace valid = ReadTrace(path);
      fmt::print("{}: ok, {} tensors, {} ops\n", path, valid.tensors.size(), valid.ops.size());
    }
  });
}

}  // namespace

void AddTrace(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand("trace", "Build, inspect and validate trace files");
  verb->require_subcommand(1);
  AddBuild(*verb, session);
  AddInfo(*verb, session);
  AddValidate(*verb);
  verb->callback([&exit_code] { exit_code = kOk; });
}

}  // namespace spillway::cli
