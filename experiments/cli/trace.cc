// spillway trace build|info|validate: trace files.

#include <fmt/format.h>

#include <array>

#include "experiments/cli/options.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/run/catalogue.h"
#include "sim/core/report.h"
#include "traces/format.h"

namespace spillway::cli {
namespace {

Row InfoRow(const Trace& trace) {
  std::array<Bytes, 7> by_kind{};
  for (const Tensor& tensor : trace.tensors) {
    if (!tensor.alias_of) by_kind[static_cast<size_t>(tensor.kind)] += tensor.size;
  }
  std::array<int64_t, 3> by_phase{};
  int64_t flops = 0;
  for (const Op& op : trace.ops) {
    ++by_phase[static_cast<size_t>(op.phase)];
    flops += op.flops();
  }
  Row row{
      {"workload", trace.name},
      {"network", trace.network},
      {"batch", trace.batch},
      {"preset", trace.preset},
      {"mode", std::string(trace.training ? "training" : "inference")},
      {"layers", static_cast<int64_t>(trace.layers.size())},
      {"tensors", static_cast<int64_t>(trace.tensors.size())},
      {"ops", static_cast<int64_t>(trace.ops.size())},
      {"forward_ops", by_phase[0]},
      {"backward_ops", by_phase[1]},
      {"update_ops", by_phase[2]},
      {"gflops", static_cast<double>(flops) / 1e9},
  };
  for (size_t i = 0; i < by_kind.size(); ++i) {
    row.push_back({fmt::format("{}_bytes", Name(static_cast<TensorKind>(i))), by_kind[i].count()});
  }
  row.push_back({"bound_layer_bytes", LayerBound(trace, Bytes(512)).count()});
  return row;
}

void PrintInfo(const Trace& trace, Format format) {
  const Row row = InfoRow(trace);
  if (format == Format::kCsv) {
    fmt::print("{}", FormatCsv({row}));
  } else if (format == Format::kJson) {
    fmt::print("{}", FormatJson({row}, "spillway.trace-info/v1"));
  } else {
    for (const Column& column : row) {
      if (const auto* bytes = std::get_if<int64_t>(&column.value);
          bytes != nullptr && column.name.ends_with("_bytes")) {
        fmt::print("{:<26}{} ({})\n", column.name, *bytes, FormatBytes(Bytes(*bytes)));
      } else {
        std::visit(
            [&](const auto& value) {
              using Type = std::decay_t<decltype(value)>;
              if constexpr (!std::is_same_v<Type, std::monostate> &&
                            !std::is_same_v<Type, NestedRows>) {
                fmt::print("{:<26}{}\n", column.name, value);
              }
            },
            column.value);
      }
    }
  }
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

void AddInfo(CLI::App& trace) {
  struct Options {
    WorkloadOption workload;
    FormatOption format;
  };
  CLI::App* verb = trace.add_subcommand("info", "Count tensors, ops, bytes and operations");
  auto options = std::make_shared<Options>();
  options->workload.Add(*verb);
  options->format.Add(*verb);
  verb->callback([options] { PrintInfo(options->workload.Load(), options->format.format()); });
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
  AddInfo(*verb);
  AddValidate(*verb);
  verb->callback([&exit_code] { exit_code = kOk; });
}

}  // namespace spillway::cli
