#include "experiments/cli/frame/options.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "policies/builtin.h"
#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/params.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {

void FormatOption::Add(Command& verb) {
  option = &verb.Choice("--format", text, {"table", "csv", "json"}, "Form of the output");
  verb.Flag("--wide", wide, "Tables with all columns and rows, whatever the terminal's width");
}

void FormatOption::Follow(const std::string& output) {
  to_file = !output.empty();
  std::filesystem::path path = output;
  if (path.extension() == ".zst") path = path.stem();
  for (const char* named : {"csv", "json"}) {
    if (path.extension() != fmt::format(".{}", named)) continue;
    if (option->given && text != named) {
      throw UsageError(
          fmt::format("--output '{}' names a {} file, --format says {}", output, named, text));
    }
    text = named;
  }
}

size_t FormatOption::width() const {
  winsize size{};
  if (wide || to_file || ::isatty(STDOUT_FILENO) != 1) return 0;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Format FormatOption::format() const {
  return text == "csv" ? Format::kCsv : text == "json" ? Format::kJson : Format::kTable;
}

void PoliciesOption::Add(Command& verb) {
  verb.Texts("--policy", given,
             "NAME or PLUGIN.so:NAME, then :key=value,...; or help; repeat for more (default: "
             "all of the mode but joint)");
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
               "- prints them; .csv and .json imply the format" +
                   remark)
      .Type("FILE")
      .NotEmpty("the name of the file is empty");
}

void WorkloadOption::Add(Command& verb) {
  verb.Text("workload", text, "NETWORK:BATCH (vgg16:256) or a trace file (.json, .json.zst)")
      .Required();
  AddLowering(verb);
}

void WorkloadOption::AddLowering(Command& verb) {
  preset_option = &verb.Text("--preset", preset,
                             "Memory accounting of the lowering; see spillway list presets");
  mode_option = &verb.Choice("--mode", mode, {"training", "inference"}, "Kind of iteration");
  verb.Choice("--host", host, {"plain", "recorded", "none"},
              "Host time before each launch of a recorded trace: plain (without the profiler), "
              "recorded (with it), or none");
}

Trace WorkloadOption::Load() const {
  Trace trace = LoadWorkload(text, {preset, mode == "training",
                                    host == "recorded" ? HostTimes::kRecorded
                                    : host == "none"   ? HostTimes::kNone
                                                       : HostTimes::kPlain});
  const auto expect = [&](const Option& option, std::string_view wanted, std::string_view found) {
    if (!option.given || wanted == found) return;
    throw UsageError(
        fmt::format("{} {}: '{}' is a trace that was lowered with {} {}; build another "
                    "one with spillway trace build",
                    option.name(), wanted, text, option.name(), found));
  };
  expect(*preset_option, preset, trace.preset);
  expect(*mode_option, mode, trace.training ? "training" : "inference");
  return trace;
}

const char* const kMemoryHelp =
    "Device memory: a size (12GiB), unlimited, N% (0% is the least that any layer-wise policy "
    "needs, 100% the in-core peak), or a built-in policy (vdnn-conv) for the memory that it needs; "
    "default: all of the device's, or in a single run of a static vdnnpp the memory that vDNN "
    "needs";

void MachineOption::Add(Command& verb) {
  verb.Text("--device", device,
            "A device name or a device file (.toml), then :key=value,... for changes "
            "(h200:link=2 has a link twice as fast); or help");
  verb.Texts("--pool", pools,
             "Memory outside the device: peer (another GPU), remote, nvme or host, then "
             ":size=SIZE and the properties of its link that the device file lacks "
             "(in=RATE,out=RATE,...); "
             "repeat for more; or help")
      .NotEmpty("no pool is given");
  verb.Text("--allocator", allocator, "Device allocator, or help");
  verb.Text("--compress", compress,
            "Keep offloaded feature maps compressed on the host: all, or hidden (where it "
            "costs no time), then :key=value,...; or help");
  verb.Text("--cost", cost,
            "Kernel times: auto (a recorded table if it has all kernels, else interpolation "
            "between recorded batches, else roofline), roofline, or a cost table file");
  verb.Flag("--deterministic", deterministic,
            "Use only kernels that give the same bits on every run");
  verb.Flag("--charge-input", charge_input, "Copy the inputs to the device in each iteration");
  verb.Flag("--check", check, "Verify every report with the independent checker");
  verb.Text("--memory", memory, kMemoryHelp).NotEmpty(kNoMemory);
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
std::string Title(const Scenario& scenario) {
  const Setup& setup = scenario.setup();
  const bool limited = setup.memory != Bytes::Unlimited();
  const std::string memory = limited ? FormatBytes(setup.memory) : "unlimited memory";
  const std::string& request = setup.memory_request;
  return fmt::format(
      "{} ({}, {}) on {} with {}\nmemory: {}; floor (0%) {}, in-core peak (100%) {}\n"
      "kernel times: {}\n",
      setup.trace->name, setup.trace->preset, setup.trace->training ? "training" : "inference",
      setup.device.description, memory,
      !request.empty() ? fmt::format("{} was asked for", request) : "all of the device",
      FormatBytes(scenario.ideal().bounds.layer),
      FormatBytes(scenario.ideal().metrics.peak_reserved), setup.cost->Provenance());
}

// Returns a line that says why a policy does not fit. `alone` says that the table has one row.
std::string FormatMisfit(const RunResult& result, bool alone, size_t width) {
  // Among several policies one sentence is enough; a single run also says who holds the memory.
  std::string reason = result.Reason();
  if (!alone) reason.resize(std::min(reason.find(". Largest"), reason.size()));
  std::string line = fmt::format("{}: {}", result.policy, reason);
  if (width > 3 && !alone && line.size() > width) line = line.substr(0, width - 3) + "...";
  return line + "\n";
}

// Returns a line that says how much a better plan could gain, or an empty text if the bound does
// not hold for the policy.
std::string FormatGap(const RunResult& result) {
  const std::string policy = ParsePolicySpec(result.policy).policy;
  if (!result.bound_joint || !DecidesByPlan(policy) || IsForRecordings(policy)) return {};
  const double time = result.iteration.milliseconds(), bound = result.bound_joint->milliseconds();
  return fmt::format(
      "{}: {:.1f} ms are {:.1f} % over {:.1f} ms, which no run in this memory beats\n",
      result.policy, time, 100 * (time / bound - 1), bound);
}

std::string FormatScenario(const Scenario& scenario, std::span<const RunResult> results,
                           size_t width) {
  std::string text = Title(scenario) + "\n";
  if (const std::string table = FormatComparison(results, width); !table.empty()) {
    text += table + "\n";
  }
  if (const std::string pools = FormatPools(results); !pools.empty()) text += pools + "\n";
  if (const std::string compression = FormatCompression(results); !compression.empty()) {
    text += compression + "\n";
  }
  for (const RunResult& result : results) {
    if (scenario.setup().allocator != result.allocator) {
      text += fmt::format("{}: allocator {}\n", result.policy, result.allocator);
    }
    text += FormatGap(result);
    if (!result.fits()) text += FormatMisfit(result, results.size() == 1, width);
  }
  return text;
}

}  // namespace

std::string FormatResults(std::span<const ScenarioResults> groups, const FormatOption& format) {
  std::vector<RunResult> all;
  for (const ScenarioResults& group : groups) {
    all.insert(all.end(), group.results.begin(), group.results.end());
  }
  return FormatAs(format.format(), ResultColumns(), all, "spillway.results/v1", [&] {
    std::string text;
    for (const ScenarioResults& group : groups) {
      if (group.results.empty()) continue;
      text += text.empty() ? "" : "\n";
      text += FormatScenario(*group.scenario, group.results, format.width());
    }
    return text;
  });
}

std::vector<std::string> AllPolicies(std::string_view mode) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  std::vector<std::string> specifications;
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (DecidesByPlan(entry.name)) continue;
    if (mode != "inference" && IsForInference(entry.name)) continue;
    if (mode != "recorded" && IsForRecordings(entry.name)) continue;
    const std::vector<ParamInfo> params = registry.Parameters(entry.name);
    const bool has_algo = std::any_of(params.begin(), params.end(), [](const ParamInfo& param) {
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
  for (const AllocatorInfo& info : Allocators()) {
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

std::function<std::string(const std::string&)> DescriptionOf(std::string_view option) {
  if (option == "--policy") return [](const auto& value) { return DescribePolicies(value); };
  const std::initializer_list<std::pair<std::string_view, std::string (*)()>> others{
      {"--device", DescribeDevices},
      {"--pool", DescribePools},
      {"--allocator", DescribeAllocators},
      {"--compress", DescribeCompression}};
  for (const auto& [name, describe] : others) {
    if (name == option) return [describe](const auto&) { return describe(); };
  }
  return {};
}

}  // namespace spillway::cli
