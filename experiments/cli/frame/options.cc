#include "experiments/cli/frame/options.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "experiments/cli/frame/terminal.h"
#include "experiments/output/wrap.h"
#include "experiments/run/pattern.h"
#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/params.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {

namespace {

// The formats, and the ending of a file that implies each. Text files take any format.
struct FormatName {
  Format format;
  const char* name;
  const char* ending;
};
constexpr FormatName kFormats[] = {{Format::kTable, "table", ".txt"},
                                   {Format::kCsv, "csv", ".csv"},
                                   {Format::kJson, "json", ".json"},
                                   {Format::kMarkdown, "markdown", ".md"},
                                   {Format::kLatex, "latex", ".tex"}};

// Returns the ending of a file's name before it is compressed.
std::string EndingOf(std::filesystem::path path) {
  if (path.extension() == ".zst") path = path.stem();
  return path.extension();
}

}  // namespace

void FormatOption::Add(Command& verb) {
  std::vector<std::string> names;
  for (const FormatName& format : kFormats) names.emplace_back(format.name);
  option = &verb.Choice("--format", text, names, "Form of the output");
  verb.Flag("--wide", wide, "Tables with all columns and rows, whatever the terminal's width");
  verb.Texts("--columns", columns,
             "Columns of a table, markdown or latex, named as in CSV (default: the usual ones); "
             "csv and json have all")
      .NotEmpty("no column is named");
}

void FormatOption::AddPivot(Command& verb) {
  Option& rows = verb.Texts("--pivot", pivot.rows,
                            "Column, or several, whose values are the rows of a table, markdown or "
                            "latex (--pivot policy --by memory)");
  const Option& by = verb.Text("--by", pivot.by, "Column whose values are the columns").Needs(rows);
  verb.Text("--value", pivot.value, "Column that fills the cells").Needs(rows);
  rows.Needs(by).NotEmpty("no column is named");
}

void FormatOption::Follow(const std::string& output) {
  to_file = !output.empty();
  const std::string ending = EndingOf(output);
  if (ending.empty() || ending == other_ending) return;
  std::vector<std::string> valid;
  for (const FormatName& format : kFormats) valid.emplace_back(format.ending);
  if (!other_ending.empty()) valid.push_back(other_ending);
  CheckEnding(output, valid);
  for (const FormatName& format : kFormats) {
    if (ending != format.ending || format.format == Format::kTable) continue;
    if (option->given && text != format.name) {
      throw UsageError(fmt::format("--output '{}' names a {} file, --format says {}", output,
                                   format.name, text));
    }
    text = format.name;
  }
}

size_t FormatOption::width() const { return wide || to_file ? 0 : TerminalWidth(); }

View FormatOption::view() const {
  View view{std::ranges::find(kFormats, text, &FormatName::name)->format, columns, {}, width()};
  if (!pivot.rows.empty()) view.pivot = pivot;
  if (view.pivot && !columns.empty()) {
    throw UsageError("--pivot: cannot be given with --columns; --value fills the cells");
  }
  const bool has_all = view.format == Format::kCsv || view.format == Format::kJson;
  if (has_all && (view.pivot || !columns.empty())) {
    throw UsageError(
        fmt::format("--{}: {} has all columns, a row for each result; choose --format "
                    "table, markdown or latex",
                    view.pivot ? "pivot" : "columns", text));
  }
  return view;
}

void CheckEnding(const std::filesystem::path& path, const std::vector<std::string>& valid) {
  const std::string ending = EndingOf(path);
  if (ending.empty() || std::ranges::count(valid, ending) > 0) return;
  throw UsageError(
      fmt::format("--output '{}': {}", path.string(), UnknownName("ending", ending, valid)));
}

void PoliciesOption::Add(Command& verb) {
  verb.Texts("--policy", given,
             "NAME or PLUGIN.so:NAME, then :key=value,...; or help; one or more (default: all of "
             "the mode but joint)")
      .NotEmpty("no policy is given");
  verb.Number("--jobs", jobs, {1, 1024},
              "Threads; any number gives the same output (default: one per core)");
}

std::vector<std::string> PoliciesOption::policies(std::string_view mode) const {
  return given.empty() ? AllPolicies(mode) : given;
}

void PoliciesOption::ForEach(size_t count, const std::function<void(size_t)>& work) const {
  tbb::task_arena arena(jobs > 0 ? jobs : tbb::task_arena::automatic);
  arena.execute([&] { tbb::parallel_for(size_t{0}, count, work); });
}

void AddOutput(Command& verb, std::string& path, FormatOption& format, const std::string& remark) {
  const auto set = [&path, &format](const std::string& text) {
    path = text == "-" ? "" : text;
    format.Follow(path);
    if (!path.empty()) CheckWritable(path);
  };
  verb.Setting("-o,--output", "", set,
               "Write the results to FILE, with a manifest beside it, instead of printing them; "
               "- prints them; .csv, .json, .md and .tex imply the format" +
                   remark)
      .Type("FILE")
      .NotEmpty("the name of the file is empty");
}

void AddCaseOptions(Command& verb, std::initializer_list<std::string_view> keys, Case& asked) {
  AddCaseOptions(verb, std::span(keys.begin(), keys.size()), asked);
}

void AddCaseOptions(Command& verb, std::span<const std::string_view> keys, Case& asked) {
  for (const std::string_view name : keys) {
    const CaseKey& key = CaseKeyOf(name);
    const bool is_argument = name == "workload";
    const auto set = [&asked, &key](const std::string& text) { key.set(asked, text); };
    Option& option = verb.Setting(is_argument ? key.name : fmt::format("--{}", name), key.initial,
                                  set, key.help);
    if (is_argument) option.Required();
    if (key.kind == CaseKey::Kind::kFlag) {
      option.Type("");
      continue;
    }
    option.NotEmpty(key.empty);
    if (key.values != nullptr) option.Choices(Alternatives(key.values));
    if (key.kind == CaseKey::Kind::kTexts) {
      // A run has all of them. Braces, which stand for alternatives, are left to sweeps.
      option.Verbatim().several = true;
      option.store = [set](const Option::Texts& texts) {
        std::ranges::for_each(SplitSpecifications(texts), set);
      };
    }
  }
}

std::string MathFor(const Trace& trace, const std::string& given) {
  const std::string_view tf32 = Name(Arithmetic::kTf32);
  return ArithmeticOf(trace) == tf32 ? std::string(tf32) : given;
}

std::string_view ModeOf(const Case& asked) {
  return asked.training.value_or(true) ? "training" : "inference";
}

std::string_view ModeOf(std::span<const std::shared_ptr<const Trace>> traces) {
  const auto is_recorded = [](const auto& trace) { return trace->recording.has_value(); };
  const auto trains = [](const auto& trace) { return trace->training; };
  return std::ranges::all_of(traces, is_recorded) ? "recorded"
         : std::ranges::any_of(traces, trains)    ? "training"
                                                  : "inference";
}

Bytes ParseSize(std::string_view option, const std::string& text, std::string_view remark) {
  try {
    return ParseBytes(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("{}: {}{}", option, error.what(), remark));
  }
}

std::string CheckedRemark(std::string_view what) {
  return fmt::format(
      "checked {}, found no violation: live blocks lie apart; every op found its operands with the "
      "contents that the trace says; host copies were complete before they were read; conflicting "
      "accesses are ordered by waits and in time; commands of a stream do not overlap",
      what);
}

namespace {

// Returns the title of a table: workload, device, memory and the source of kernel times.
std::string Title(const LoadedCase& loaded) {
  const Inputs& inputs = *loaded.inputs;
  const Trace& trace = *inputs.trace();
  const Bytes memory = inputs.MemoryOf(loaded.asked);
  const Report& ideal = inputs.IdealOf(loaded.asked);
  const std::string provenance = inputs.cost()->Provenance();
  const std::string arithmetic = inputs.cost()->ArithmeticFor(trace);
  return fmt::format(
      "{} ({}, {}) on {} with {}\nmemory: {}; floor (0%) {}, in-core peak (100%) {}\n"
      "kernel times: {}\n",
      trace.name, trace.preset, trace.training ? "training" : "inference",
      inputs.device().description,
      memory != Bytes::Unlimited() ? FormatBytes(memory) : "unlimited memory",
      loaded.asked.memory ? fmt::format("{} was asked for", loaded.asked.memory->text())
                          : "all of the device",
      FormatBytes(ideal.bounds.layer), FormatBytes(ideal.metrics.peak_reserved),
      provenance.ends_with(arithmetic) ? provenance
                                       : fmt::format("{}, {}", provenance, arithmetic));
}

// Returns a line that says why a policy does not fit, cut at `width` unless it is 0. `alone` says
// that the table has one row: then lines also say who holds the memory.
std::string FormatMisfit(const RunResult& result, bool alone, size_t width) {
  const auto& request = result.report.out_of_memory;
  const std::string reason = alone || !request ? result.Reason() : Brief(*request);
  const std::string line = fmt::format("{}: {}", result.policy, reason);
  return alone ? Wrapped(line, width) : CutAt(width, line) + "\n";
}

// Returns a line that says how much a better plan could gain, or an empty text if the bound does
// not hold for the policy.
std::string FormatGap(const RunResult& result) {
  if (!result.bound_joint || !result.planned) return {};
  const double time = result.iteration.milliseconds(), bound = result.bound_joint->milliseconds();
  return fmt::format(
      "{}: {:.1f} ms are {:.1f} % over {:.1f} ms, which no run in this memory beats\n",
      result.policy, time, 100 * (time / bound - 1), bound);
}

std::string FormatGroup(const CaseResults& group, size_t width) {
  const std::vector<RunResult> results = Ranked<RunResult>(group.results, StandingOfResult);
  std::string text =
      Wrapped(Title(group.loaded), width) + "\n" + FormatComparison(results, width) + "\n";
  if (const std::string pools = FormatPools(results, width); !pools.empty()) text += pools + "\n";
  if (const std::string table = FormatCompression(results, width); !table.empty()) {
    text += table + "\n";
  }
  for (const RunResult& result : results) {
    if (group.loaded.asked.allocator.name() != result.allocator) {
      text += Wrapped(fmt::format("{}: allocator {}\n", result.policy, result.allocator), width);
    }
    text += Wrapped(FormatGap(result), width);
    if (!result.fits()) text += FormatMisfit(result, results.size() == 1, width);
  }
  return text;
}

}  // namespace

std::string FormatResults(std::span<const CaseResults> groups, const FormatOption& format) {
  std::vector<RunResult> all;
  for (const CaseResults& group : groups) {
    all.insert(all.end(), group.results.begin(), group.results.end());
  }
  const auto table = [&] {
    std::string text;
    for (const CaseResults& group : groups) {
      if (group.results.empty()) continue;
      text += text.empty() ? "" : "\n";
      text += FormatGroup(group, format.width());
    }
    return text;
  };
  return FormatAs(format.view(), ResultColumns(), all, "spillway.results/v1", table, kUsualColumns);
}

std::vector<std::string> AllPolicies(std::string_view mode) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  std::vector<std::string> specifications;
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (!entry.traits.tried_by_default) continue;
    if (mode != "inference" && entry.traits.for_inference) continue;
    if (mode != "recorded" && entry.traits.for_recordings) continue;
    const std::vector<ParamInfo> params = registry.Parameters(entry.name);
    const bool has_algo =
        mode != "recorded" && std::any_of(params.begin(), params.end(), [](const ParamInfo& param) {
          return param.name == "algo" && param.initial != "auto";
        });
    if (has_algo) {
      specifications.push_back(entry.name + ":algo=memory");
      specifications.push_back(entry.name + ":algo=performance");
    } else {
      specifications.push_back(entry.name);
    }
  }
  return specifications;
}

namespace {

std::string FormatParameters(const std::vector<ParamInfo>& parameters) {
  std::string text;
  for (const ParamInfo& param : parameters) {
    text += fmt::format("    {}={} (default {}): {}\n", param.name, param.type, param.initial,
                        param.help);
  }
  return text;
}

}  // namespace

std::string DescribePolicies() { return DescribePolicies("help"); }

std::string DescribePolicies(const std::string& specification) {
  // The words before "help" choose all built-in policies, the policies of a plugin, or one policy.
  PolicySpec spec = ParsePolicySpec(specification);
  if (spec.policy == "help") spec.policy.clear();
  PolicyLibrary library;
  const PolicyRegistry& registry = library.Registry(spec);
  std::string text;
  if (!spec.policy.empty()) library.Parameters(spec, spec.policy);  // throws if there is none
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (!spec.policy.empty() && spec.policy != entry.name) continue;
    text += fmt::format("{}\n    {}\n", entry.name, entry.description);
    text += FormatParameters(library.Parameters(spec, entry.name));
  }
  return text;
}

std::string DescribeDevices() {
  std::vector<std::vector<std::string>> cells{{"device", "memory", "description"}};
  for (const std::string& name : DeviceNames()) {
    const Device device = LoadDevice(name);
    cells.push_back({name, FormatBytes(device.memory), device.description});
  }
  std::string text = FormatTable(cells) + "\nvalues that NAME:key=value,... changes\n";
  return text + FormatParameters(DeviceParameters());
}

std::string DescribePools() {
  std::string text =
      "host     pinned memory of the host; its link is the device's\n"
      "peer     memory of another GPU of the machine\n"
      "remote   memory of another machine; simulated only\n"
      "nvme     a disk; simulated only\n"
      "\nvalues that POOL:key=value,... changes (the device file gives the others)\n";
  for (const ParamInfo& param : PoolParameters()) {
    text += fmt::format("    {}={}: {}\n", param.name, param.type, param.help);
  }
  return text;
}

std::string DescribeAllocators() {
  std::string text;
  for (const AllocatorInfo& info : AllocatorChoices()) {
    text += fmt::format("{}\n    {}\n", info.name, info.description);
    text += FormatParameters(info.parameters);
  }
  return text;
}

std::string DescribeNetworks() {
  std::vector<std::vector<std::string>> cells{{"network", "description"}};
  for (const ZooEntry& entry : Zoo()) cells.push_back({entry.name, entry.description});
  for (const auto& [pattern, description] : ZooPatterns()) cells.push_back({pattern, description});
  return FormatTable(cells);
}

std::string DescribePresets() {
  std::vector<std::vector<std::string>> cells{{"preset", "description"}};
  for (const Preset& preset : Presets()) cells.push_back({preset.name, preset.description});
  return FormatTable(cells);
}

std::string DescribeWorkloads() {
  std::string text =
      "NETWORK:BATCH of spillway list networks, or a trace file (.json, .json.zst)\n"
      "\noptions that WORKLOAD,option=value,... gives\n";
  const auto values = [](const char* valid, const char* of) {
    return valid == nullptr ? "" : fmt::format(" {}{}{}", of, *valid == 0 ? "" : ": ", valid);
  };
  for (const WorkloadOption& option : WorkloadOptions()) {
    text += fmt::format(
        "    {} (for{}{}{}){}: {}\n", option.name, values(option.network, "networks"),
        option.network && option.file ? ", and" : "", values(option.file, "trace files"),
        *option.initial == 0 ? "" : fmt::format(", default {}", option.initial), option.help);
  }
  return text;
}

std::function<std::string(const std::string&)> DescriptionOf(std::string_view option) {
  if (option == "--policy") return [](const auto& value) { return DescribePolicies(value); };
  const std::initializer_list<std::pair<std::string_view, std::string (*)()>> others{
      {"--device", DescribeDevices},       {"--pool", DescribePools},
      {"--allocator", DescribeAllocators}, {"--compress", DescribeCompression},
      {"workload", DescribeWorkloads},     {"workloads", DescribeWorkloads},
      {"grid", DescribeWorkloads}};
  for (const auto& [name, describe] : others) {
    if (name == option) return [describe](const auto&) { return describe(); };
  }
  return {};
}

}  // namespace spillway::cli
