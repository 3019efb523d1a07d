#include "experiments/cli/session.h"

#include <fmt/format.h>
#include <tbb/version.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>

#include "policies/library.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/sha256.h"

namespace spillway::cli {

namespace {

constexpr const char* kManifestSuffix = ".manifest.json";

// Throws `UsageError` if two files, or the manifest of one and another file, are the same, however
// they are spelled, or if one of them is an input.
void CheckPlaces(const std::vector<OutputFile>& files, const std::vector<ManifestInput>& inputs) {
  const auto place = [](const std::string& path) {
    std::error_code ignored;
    const auto absolute = std::filesystem::absolute(path, ignored);
    const auto canonical = std::filesystem::weakly_canonical(absolute, ignored);
    return ignored ? absolute : canonical;
  };
  std::map<std::filesystem::path, std::string> owners;  // by place
  for (const ManifestInput& input : inputs) {
    if (input.source == "file") owners.emplace(place(input.name), "the input");
  }
  for (const OutputFile& file : files) {
    for (const char* suffix : {"", kManifestSuffix}) {
      const std::string owner = *suffix == 0 ? file.option : "the manifest of " + file.option;
      const auto [other, is_new] = owners.emplace(place(file.path + suffix), owner);
      if (is_new) continue;
      throw UsageError(fmt::format("{} and {} name the same file, '{}'", other->second, owner,
                                   file.path + suffix));
    }
  }
}

}  // namespace

void Session::Print(std::string_view text) const {
  if (captured_ == nullptr) fmt::print("{}", text);
}

void Session::Remark(std::string_view line) const {
  if (captured_ == nullptr) fmt::print(stderr, "spillway: {}\n", line);
}

Manifest Session::NewManifest() const {
  Manifest manifest;
  manifest.version = SPILLWAY_VERSION;
  manifest.compiler = CompilerVersion();
  manifest.libraries = LibraryVersions();
  manifest.arguments = arguments_;
  return manifest;
}

int Session::Finish(std::string results, const std::string& output,
                    const std::vector<Export>& exports, int exit_code,
                    const std::function<void(Manifest&)>& describe) {
  Manifest manifest = NewManifest();
  manifest.exit_code = exit_code;
  const bool exporting = std::any_of(exports.begin(), exports.end(),
                                     [](const Export& file) { return !file.path.empty(); });
  if (output.empty() && !exporting) return Finish(results, exit_code);
  describe(manifest);
  std::vector<OutputFile> files;
  if (!output.empty()) files.push_back({"--output", output, std::move(results)});
  for (const Export& file : exports) {
    if (!file.path.empty()) files.push_back({file.option, file.path, file.contents(manifest)});
  }
  Write(files, std::move(manifest));
  return output.empty() ? Finish(results, exit_code) : exit_code;
}

int Session::Finish(std::string_view results, int exit_code) const {
  Print(results);
  return exit_code;
}

void Session::Write(const std::vector<OutputFile>& files, Manifest manifest) {
  CheckPlaces(files, manifest.inputs);
  for (const OutputFile& file : files) {
    manifest.outputs.push_back({file.option, file.path, Sha256(file.contents),
                                static_cast<int64_t>(file.contents.size())});
  }
  if (captured_ != nullptr) {
    captured_->insert(captured_->end(), files.begin(), files.end());
    return;
  }
  const std::string text = FormatManifest(manifest);
  const auto guard = interrupts_.Hold();
  for (const OutputFile& file : files) {
    WriteFile(file.path, file.contents);
    WriteFile(file.path + kManifestSuffix, text);
  }
}

void CreateDirectory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw InputError(
        fmt::format("cannot create the directory '{}': {}", path.string(), error.message()));
  }
}

void DescribeRun(const WorkloadOption& workload, const MachineOption& machine,
                 const Scenario& scenario, const std::vector<std::string>& policies,
                 Manifest& manifest) {
  const Setup& setup = scenario.setup();
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  manifest.configuration = {
      {"workload", workload.text},
      {"preset", setup.trace->preset},
      {"mode", setup.trace->training ? "training" : "inference"},
      {"device", machine.device},
      {"memory", setup.memory == Bytes::Unlimited() ? "unlimited"
                                                    : fmt::format("{} B", setup.memory.count())},
      {"allocator", setup.allocator},
      {"cost", setup.cost->Provenance()},
      {"charge-input", flag(machine.charge_input)},
      {"check", flag(machine.check)},
      {"policy", fmt::format("{}", fmt::join(policies, " "))},
  };
  if (setup.compression) manifest.configuration.emplace_back("compress", machine.compress);
  const auto add = [&](const char* role, const char* source, const std::string& name) {
    ManifestInput input{role, source, name, {}};
    input.sha256 = HashInput(input, manifest.configuration);
    manifest.inputs.push_back(std::move(input));
  };
  const bool file = workload.text.ends_with(".json") || workload.text.ends_with(".zst");
  add("trace", file ? "file" : "generated", workload.text);
  const std::string device = DeviceBase(machine.device);
  if (device.ends_with(".toml")) {
    add("device", "file", device);
  } else {
    add("device", "data", fmt::format("sim/devices/{}.toml", device));
  }
  if (machine.cost == "auto") {
    add("cost_table", "data", RecordedTablePath(setup.device.name, *setup.trace));
  } else if (machine.cost != "roofline") {
    add("cost_table", "file", machine.cost);
  }
  if (setup.compression && setup.compression->densities) {
    add("densities", "file", setup.compression->densities_file);
  }
  for (const std::string& policy : policies) {
    if (const std::string plugin = ParsePolicySpec(policy).plugin; !plugin.empty()) {
      add("policy", "file", plugin);
    }
  }
}

std::string CompilerVersion() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

Settings LibraryVersions() {
  Settings versions;
  // "fmt 9.1.0,simdjson 3.0.1,..." from the build.
  std::string_view left = SPILLWAY_LIBRARIES;
  while (!left.empty()) {
    const std::string_view one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
    const size_t blank = one.find(' ');
    versions.emplace_back(one.substr(0, blank), one.substr(blank + 1));
  }
  versions.emplace_back("oneTBB", fmt::format("{}.{}", TBB_VERSION_MAJOR, TBB_VERSION_MINOR));
  versions.emplace_back("CLI11", CLI11_VERSION);
  return versions;
}

}  // namespace spillway::cli
