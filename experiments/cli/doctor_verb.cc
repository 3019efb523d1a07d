// spillway doctor: says which parts the program has, which this machine can run, and how to get the
// missing ones.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/output/columns.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;

// An item that the doctor looked for; `remedy` is empty if nothing is to be done.
struct Finding {
  std::string item;
  enum class Status : uint8_t { kPresent, kMissing, kBroken } status = Status::kPresent;
  std::string value;
  std::string remedy = {};
};

std::string_view Name(Finding::Status status) {
  constexpr std::array<std::string_view, 3> kNames{"ok", "missing", "broken"};
  return kNames[static_cast<size_t>(status)];
}

Columns<Finding> FindingColumns() {
  return {
      {"item", "", "name of the item", &Finding::item, "item"},
      {"status", "", "ok, missing or broken", [](auto& f) { return Name(f.status); }, "status"},
      {"value", "", "version, path or reason", &Finding::value, "value"},
      {"remedy", "", "how to get it", [](auto& f) { return IfAny(f.remedy); }},
  };
}

// Looks for the data files that simulation needs.
void LookAtData(std::vector<Finding>& findings) {
  using enum Finding::Status;
  const char* chosen = std::getenv("SPILLWAY_DATA");
  size_t devices = 0;
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    const bool found = fs::is_directory(directory / "sim/devices", ignored);
    const bool by_variable = chosen != nullptr && directory == chosen;
    devices += found ? 1 : 0;
    if (found) {
      findings.push_back({"data directory", kPresent, directory});
    } else if (by_variable) {
      findings.push_back({"data directory", kBroken, directory.string() + ": no sim/devices in it",
                          "correct or unset SPILLWAY_DATA"});
    }
  }
  if (devices == 0) {
    findings.push_back({"data directory", kBroken, "none found",
                        "set SPILLWAY_DATA to the source tree, or install with cmake --install"});
    return;
  }
  for (const std::string& name : DeviceNames()) {
    try {
      const Device device = LoadDevice(name);
      size_t tables = 0;
      for (const fs::path& directory : DataDirectories()) {
        std::error_code ignored;
        for (const auto& entry :
             fs::directory_iterator(directory / "traces/recorded" / name, ignored)) {
          tables += entry.path().extension() == ".zst" ? 1 : 0;
        }
        if (tables > 0) break;
      }
      findings.push_back(
          {"device " + name, kPresent,
           fmt::format("{}, {} of memory, {}", device.description, FormatBytes(device.memory),
                       tables == 0 ? std::string("no recorded kernel times")
                                   : fmt::format("{} recorded tables", tables))});
    } catch (const Error& error) {
      findings.push_back({"device " + name, kBroken, error.what(), "correct the device file"});
    }
  }
}

void LookForGpu(std::vector<Finding>& findings) {
  using enum Finding::Status;
  try {
    static_cast<void>(Cuda());
    findings.push_back({"CUDA backend", kPresent, "loaded"});
  } catch (const EnvironmentError& error) {
    findings.push_back(
        {"CUDA backend", kMissing,
         fmt::format("{}; record, validate, calibrate and --backend cuda need it", error.what()),
         "install the CUDA toolkit and cuDNN 9 (NVIDIA's Debian repository: cuda-toolkit, "
         "cudnn9-cuda-12), then build with -DSPILLWAY_CUDA=ON"});
  }
  std::ifstream driver("/proc/driver/nvidia/version");
  std::string version;
  if (driver && std::getline(driver, version)) {
    findings.push_back({"NVIDIA driver", kPresent, version});
  } else {
    findings.push_back({"NVIDIA driver", kMissing,
                        "not loaded; record, validate, calibrate and --backend cuda need it",
                        "on a machine with an NVIDIA GPU: apt-get install nvidia-driver (Debian "
                        "non-free)"});
  }
  try {
    findings.push_back({"GPU", kPresent, Cuda().describe(0)});
    for (const std::string& peer : Cuda().describe_peers(0))
      findings.push_back({"peer", kPresent, peer});
  } catch (const EnvironmentError& error) {
    findings.push_back({"GPU", kMissing, error.what(),
                        "simulate here, and record on a machine with an NVIDIA GPU"});
  }
}

// Looks for matplotlib, which scripts/plot.py needs.
void LookForMatplotlib(std::vector<Finding>& findings) {
  using enum Finding::Status;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen("python3 -c 'import matplotlib; print(matplotlib.__version__)' 2>/dev/null", "re"),
      ::pclose);
  std::array<char, 64> version{};
  if (pipe && std::fgets(version.data(), version.size(), pipe.get()) != nullptr) {
    std::string text = version.data();
    text.erase(text.find_last_not_of('\n') + 1);
    findings.push_back({"matplotlib", kPresent, text});
  } else {
    findings.push_back({"matplotlib", kMissing, "not found by python3; scripts/plot.py needs it",
                        "apt-get install python3-matplotlib"});
  }
}

int Execute(const FormatOption& format, Session& session) {
  using enum Finding::Status;
  std::vector<Finding> findings{{"spillway", kPresent, SPILLWAY_VERSION},
                                {"compiler", kPresent, CompilerVersion()}};
  for (const auto& [name, version] : LibraryVersions()) {
    findings.push_back({"library " + name, kPresent, version});
  }
  findings.push_back(
      {"processor threads", kPresent, fmt::format("{}", std::thread::hardware_concurrency())});
  LookAtData(findings);
  LookForGpu(findings);
  LookForMatplotlib(findings);

  const std::string text =
      FormatAs(format.view(), FindingColumns(), findings, "spillway.doctor/v1", [&] {
        constexpr std::string_view kShown[] = {"item", "status", "value"};
        std::string table = FormatTable(FindingColumns(), kShown, findings);
        std::string remedies;
        for (const Finding& finding : findings) {
          if (finding.remedy.empty()) continue;
          remedies += fmt::format("{}: {}\n", finding.item, finding.remedy);
        }
        if (!remedies.empty()) table += "\nHow to get what is missing:\n" + remedies;
        return table;
      });
  const bool broken = std::any_of(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return finding.status == kBroken; });
  return session.Finish(text, broken ? kNegative : kOk);
}

}  // namespace

void AddDoctor(Command& program, Session& session) {
  Command& verb = program.Add(
      "doctor",
      "List the parts of the program, and say which are missing on this machine and how to get "
      "them; exit code 1 if a part that every verb needs is broken");
  verb.examples = {"doctor", "doctor --format json"};
  auto& format = verb.Runs(Execute, session);
  format.Add(verb);
}

}  // namespace spillway::cli
