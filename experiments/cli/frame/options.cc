#include "experiments/cli/frame/options.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "sim/alloc/make_allocator.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/params.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {

void FormatOption::Add(CLI::App& verb) {
  option = verb.add_option("--format", text, "Form of the output")
               ->check(CLI::IsMember({"table", "csv", "json"}))
               ->capture_default_str();
  verb.add_flag("--wide", wide, "Tables with all columns and rows, whatever the terminal's width");
}

void FormatOption::Follow(const std::string& output) {
  to_file = !output.empty();
  std::filesystem::path path = output;
  if (path.extension() == ".zst") path = path.stem();
  for (const char* named : {"csv", "json"}) {
    if (path.extension() != fmt::format(".{}", named)) continue;
    if (option->count() > 0 && text != named) {
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

void PoliciesOption::Add(CLI::App& verb) {
  verb.add_option("--policy", given,
                  "NAME or PLUGIN.so:NAME, then :key=value,...; or help; repeat for more (default: "
                  "all of the mode but joint)");
  verb.add_option("--jobs", jobs,
                  "Threads; any number gives the same output (default: one per core)")
      ->check(CLI::Range(1, 1024));
}

std::vector<std::string> PoliciesOption::policies(std::string_view mode) const {
  return given.empty() ? AllPolicies(mode) : given;
}

CLI::Validator NotNegative() {
  const auto check = [](const std::string& text) {
    return text.starts_with('-') ? fmt::format("{} is negative", text) : std::string();
  };
  return CLI::Validator(check, "");
}

CLI::Option* AddFile(CLI::App& verb, const std::string& names, std::string& path,
                     const std::string& help) {
  const auto check = [](const std::string& text) {
    return text.empty()  ? std::string("the name of the file is empty")
           : text == "-" ? std::string("only --output takes - for standard output")
                         : std::string();
  };
  return verb.add_option(names, path, help)->type_name("FILE")->check(CLI::Validator(check, ""));
}

void AddOutput(CLI::App& verb, std::string& path, FormatOption& format, const std::string& remark) {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("the name of the file is empty") : std::string();
  };
  verb.add_option("-o,--output", path,
                  "Write the results to FILE, with a manifest beside it, instead of printing them, "
                  "as - does; .csv and .json imply the format" +
                      remark)
      ->type_name("FILE")
      ->check(CLI::Validator(check, ""));
  verb.parse_complete_callback([&path, &format] {
    if (path == "-") path.clear();
    format.Follow(path);
    if (!path.empty()) CheckWritable(path);
  });
}

CLI::Validator MemoryGiven() {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("no size; leave --memory out for all of the device's")
                        : std::string();
  };
  return CLI::Validator(check, "");
}

void WorkloadOption::Add(CLI::App& verb) {
  verb.add_option("workload", text, "NETWORK:BATCH (vgg16:256) or a trace file (.json, .json.zst)")
      ->required();
  AddLowering(verb);
}

void WorkloadOption::AddLowering(CLI::App& verb) {
  verb.add_option("--preset", preset,
                  "Memory accounting of the lowering; see spillway list presets")
      ->each([this](const std::string&) { preset_given = true; })
      ->capture_default_str();
  verb.add_option("--mode", mode, "What one iteration is")
      ->each([this](const std::string&) { mode_given = true; })
      ->check(CLI::IsMember({"training", "inference"}))
      ->capture_default_str();
  verb.add_option("--host", host,
                  "Of a recorded trace, the host's time before each launch: plain (without the "
                  "profiler), recorded, or none")
      ->check(CLI::IsMember({"plain", "recorded", "none"}))
      ->capture_default_str();
}

Trace WorkloadOption::Load() const {
  Trace trace = LoadWorkload(text, {preset, mode == "training",
                                    host == "recorded" ? HostTimes::kRecorded
                                    : host == "none"   ? HostTimes::kNone
                                                       : HostTimes::kPlain});
  const auto expect = [&](bool given, const char* option, std::string_view wanted,
                          std::string_view found) {
    if (!given || wanted == found) return;
    throw UsageError(
        fmt::format("{} {}: '{}' is a trace that was lowered with {} {}; build another "
                    "one with spillway trace build",
                    option, wanted, text, option, found));
  };
  expect(preset_given, "--preset", preset, trace.preset);
  expect(mode_given, "--mode", mode, trace.training ? "training" : "inference");
  return trace;
}

const char* const kMemoryHelp =
    "Device memory: a size (12GiB), unlimited, N%: that far from the least that any layer-wise "
    "policy needs (0%) to the in-core peak (100%), or a built-in policy (vdnn-conv): what that one "
    "needs; default: the device's, in a single run of a static vdnnpp what vDNN needs";

void MachineOption::Add(CLI::App& verb) {
  AddAllButMemory(verb);
  verb.add_option("--memory", memory, kMemoryHelp)->check(MemoryGiven());
}

void MachineOption::AddAllButMemory(CLI::App& verb) {
  verb.add_option("--device", device,
                  "A device name or a device file (.toml), then :key=value,... for what is "
                  "different (h200:link=2 has a link twice as fast); or help")
      ->capture_default_str();
  verb.add_option("--pool", pools,
                  "Memory outside the device: peer (another GPU), remote, nvme or host, then "
                  ":size=SIZE and what the device does not say of its link (in=RATE,out=RATE,...); "
                  "repeat for more; or help")
      ->check(CLI::Validator([](const std::string& text) { return text.empty() ? "no pool" : ""; },
                             ""));
  verb.add_option("--allocator", allocator, "Device allocator, or help")->capture_default_str();
  verb.add_option("--compress", compress,
                  "Keep offloaded feature maps compressed on the host: all, or hidden (where it "
                  "costs no time), then :key=value,...; or help");
  verb.add_option("--cost", cost,
                  "Kernel times: auto (recorded if a table has all, else between the recorded "
                  "batches around, else roofline), roofline, or a cost table file")
      ->capture_default_str();
  verb.add_flag("--deterministic", deterministic,
                "Only kernels that give the same bits on every run");
  verb.add_flag("--charge-input", charge_input, "Copy the inputs to the device in each iteration");
  verb.add_flag("--check", check, "Verify every report with the independent checker");
}

std::string CheckedRemark(std::string_view what) {
  return fmt::format(
      "checked {}, found no violation: live blocks lie apart; every op found its operands with the "
      "contents that the trace says; host copies were complete before they were read; conflicting "
      "accesses are ordered by waits and in time; commands of a stream do not overlap",
      what);
}

namespace {

// For people: workload, device, memory and where the costs come from.
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

// Why a policy does not fit.
std::string FormatMisfit(const RunResult& result, bool alone, size_t width) {
  // Among several policies one sentence is enough; a single run also says who holds the memory.
  std::string reason = result.Reason();
  if (!alone) reason.resize(std::min(reason.find(". Largest"), reason.size()));
  std::string line = fmt::format("{}: {}", result.policy, reason);
  if (width > 3 && !alone && line.size() > width) line = line.substr(0, width - 3) + "...";
  return line + "\n";
}

// How much a better plan could gain; empty where the bound does not hold.
std::string FormatGap(const RunResult& result) {
  if (!result.bound_joint || !result.planned) return {};
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
    if (!entry.traits.tried_by_default) continue;
    if (mode != "inference" && entry.traits.for_inference) continue;
    if (mode != "recorded" && entry.traits.for_recordings) continue;
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

std::string DescribePolicies() { return DescribePolicies("help"); }

std::string DescribePolicies(const std::string& specification) {
  // What stands before "help" chooses: nothing, a plugin, or one policy.
  PolicySpec spec = ParsePolicySpec(specification);
  if (spec.policy == "help") spec.policy.clear();
  PolicyLibrary library;
  const PolicyRegistry& registry = library.Registry(spec);
  std::string text;
  if (!spec.policy.empty()) library.Parameters(spec, spec.policy);  // throws if there is none
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (!spec.policy.empty() && spec.policy != entry.name) continue;
    text += fmt::format("{}\n    {}\n", entry.name, entry.description);
    for (const ParamInfo& param : library.Parameters(spec, entry.name)) {
      text += fmt::format("    {}={} (default {}): {}\n", param.name, param.type, param.initial,
                          param.help);
    }
  }
  return text;
}

std::string DescribeDevices() {
  std::vector<std::vector<std::string>> cells{{"device", "memory", "description"}};
  for (const std::string& name : DeviceNames()) {
    const Device device = LoadDevice(name);
    cells.push_back({name, FormatBytes(device.memory), device.description});
  }
  std::string text = FormatTable(cells) + "\nwhat can be different, NAME:key=value,...\n";
  for (const ParamInfo& param : DeviceParameters()) {
    text += fmt::format("    {}={} (default {}): {}\n", param.name, param.type, param.initial,
                        param.help);
  }
  return text;
}

std::string DescribePools() {
  std::string text =
      "host     pinned memory of the host; its link is the device's\n"
      "peer     memory of another GPU of the machine\n"
      "remote   memory of another machine; simulated only\n"
      "nvme     a disk; simulated only\n"
      "\nwhat can be given, POOL:key=value,... (what is not is as the device file says)\n";
  for (const ParamInfo& param : PoolParameters()) {
    text += fmt::format("    {}={}: {}\n", param.name, param.type, param.help);
  }
  return text;
}

std::string DescribeAllocators() {
  std::string text;
  for (const AllocatorInfo& info : Allocators()) {
    text += fmt::format("{}\n    {}\n", info.name, info.description);
    for (const ParamInfo& param : info.parameters) {
      text += fmt::format("    {}={} (default {}): {}\n", param.name, param.type, param.initial,
                          param.help);
    }
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

bool PrintHelpValues(const MachineOption& machine, const std::vector<std::string>& policies) {
  bool printed = false;
  for (const std::string& policy : policies) {
    if (policy != "help" && !policy.ends_with(":help")) continue;
    fmt::print("{}", Printable(DescribePolicies(policy)));
    printed = true;
  }
  const auto print = [&](bool wanted, std::string (*describe)()) {
    if (wanted) fmt::print("{}", describe());
    printed |= wanted;
  };
  print(machine.device == "help", DescribeDevices);
  print(std::ranges::count(machine.pools, "help") > 0, DescribePools);
  print(machine.allocator == "help", DescribeAllocators);
  print(machine.compress == "help", DescribeCompression);
  return printed;
}

}  // namespace spillway::cli
