#include "experiments/cli/frame/descriptions.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/run/allocator_choice.h"
#include "experiments/run/compression_plan.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/workload_text.h"
#include "policies/plugin/library.h"
#include "policies/registry.h"
#include "traces/base/params.h"
#include "traces/lowering/preset.h"
#include "traces/zoo/zoo.h"

namespace spillway::cli {

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
      {"network", DescribeWorkloads},      {"grid", DescribeWorkloads}};
  for (const auto& [name, describe] : others) {
    if (name == option) return [describe](const auto&) { return describe(); };
  }
  return {};
}

}  // namespace spillway::cli
