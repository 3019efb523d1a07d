// The verb `spillway calibrate` measures this machine's GPU and writes a device file.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/module.h"
#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/device_specification.h"
#include "experiments/tools/measure/calibration_fit.h"
#include "sim/cost/records/measurements.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;

struct CalibrateCommand {
  std::string output;
  std::string from;
  std::string raw;
  std::string refit;
  int device = 0;
  std::optional<int> peer;
  bool quick = false;
  FormatOption format;
};

CalibrateOptions MakeOptions(const CalibrateCommand& command) {
  CalibrateOptions options;
  options.device = command.device;
  options.peer = command.peer;
  if (command.quick) {
    options.repeats = 5;
    options.largest_copy = Bytes::MiB(128);
    options.largest_device_copy = Bytes::GiB(1);
    options.largest_allocation = Bytes::GiB(1);
    options.largest_pinned = Bytes::MiB(128);
    options.clock_warmup = Duration::Milliseconds(500);
  }
  return options;
}

// Throws `InputError` if `path` cannot be written. The check comes before the measurements, because
// a later failure would lose them.
void CheckFolder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw InputError(
        fmt::format("cannot write '{}': no directory '{}'", path.string(), folder.string()));
  }
  if (access(folder.c_str(), W_OK) != 0 || fs::is_directory(path, ignored)) {
    throw InputError(fmt::format("cannot write '{}'", path.string()));
  }
}

// Returns the path of the device file from which a calibration of the machine starts, among the
// device files that come with the program. Throws `UsageError` if `NearestDevice` finds none.
fs::path FindBase(const Machine& machine) {
  const std::vector<std::string> names = DeviceNames();
  std::vector<Device> devices;
  for (const std::string& name : names) devices.push_back(LoadDevice(name));
  const Device* nearest = NearestDevice(devices, machine);
  if (nearest != nullptr) return DevicePath(nearest->name);
  throw UsageError(fmt::format(
      "no device file describes '{}'; name one with --from for what cannot be measured: peak "
      "FLOP/s, host memory and efficiencies (valid: {}, or a file)",
      machine.gpu, fmt::join(names, ", ")));
}

std::string Cell(double rate) { return fmt::format("{:.2f}", rate / 1e9); }

// Returns a table for people of bandwidths by size.
std::string CopyTable(const std::vector<CopyTiming>& copies) {
  std::vector<std::vector<std::string>> cells{{"size", "h2d GB/s", "d2h GB/s", "h2d both GB/s",
                                               "d2h both GB/s", "sum GB/s", "h2d us", "d2h us",
                                               "h2d spread", "d2h spread"}};
  for (const CopyTiming& copy : copies) {
    const auto rate = [&](const Timing& timing) {
      return static_cast<double>(copy.size.count()) / timing.median.seconds();
    };
    const auto microseconds = [](const Timing& timing) {
      return fmt::format("{:.2f}", timing.median.seconds() * 1e6);
    };
    cells.push_back({FormatBytes(copy.size), Cell(rate(copy.h2d)), Cell(rate(copy.d2h)),
                     Cell(rate(copy.h2d_both)), Cell(rate(copy.d2h_both)),
                     Cell(rate(copy.h2d_both) + rate(copy.d2h_both)), microseconds(copy.h2d),
                     microseconds(copy.d2h), fmt::format("{:.1f} %", 100 * copy.h2d.spread),
                     fmt::format("{:.1f} %", 100 * copy.d2h.spread)});
  }
  return FormatTable(cells);
}

// Returns a table for people of the link to another GPU; h2d means from that GPU. The table is
// empty if the link was not measured.
std::string PeerTable(const Measurements& measurements) {
  if (measurements.peer_copies.empty()) return {};
  return "from and to the peer\n" + CopyTable(measurements.peer_copies) + "\n";
}

// Returns a table for people of driver calls by size.
std::string AllocationTable(const Measurements& measurements) {
  std::vector<std::vector<std::string>> cells{
      {"size", "allocate us", "spread", "release us", "spread"}};
  const auto add = [&](const char* kind, const std::vector<AllocationTiming>& calls) {
    for (const AllocationTiming& call : calls) {
      const auto time = [](const Timing& timing) {
        return fmt::format("{:.2f}", timing.median.seconds() * 1e6);
      };
      const auto spread = [](const Timing& timing) {
        return fmt::format("{:.1f} %", 100 * timing.spread);
      };
      cells.push_back({fmt::format("{} {}", kind, FormatBytes(call.size)), time(call.allocate),
                       spread(call.allocate), time(call.release), spread(call.release)});
    }
  };
  add("device", measurements.device_memory);
  add("pinned", measurements.pinned_memory);
  std::vector<AllocationTiming> pages;
  for (const PageTiming& page : measurements.page_memory) {
    pages.push_back({page.size, page.map_new, page.unmap});
  }
  add("new pages", pages);
  for (const PageTiming& page : measurements.page_memory) {
    cells.push_back({fmt::format("pages again {}", FormatBytes(page.size)),
                     fmt::format("{:.2f}", page.map.median.seconds() * 1e6),
                     fmt::format("{:.1f} %", 100 * page.map.spread), "", ""});
  }
  return FormatTable(cells);
}

// Returns a table for people of the host time of calls to the convolution library. The table is
// empty if none was measured.
std::string LibraryTable(const Measurements& measurements) {
  if (measurements.library_calls.empty()) return {};
  std::vector<std::vector<std::string>> cells{{"library call", "us", "spread"}};
  for (const LibraryCallTiming& call : measurements.library_calls) {
    cells.push_back({call.call, fmt::format("{:.2f}", call.time.median.seconds() * 1e6),
                     fmt::format("{:.1f} %", 100 * call.time.spread)});
  }
  return FormatTable(cells) + "\n";
}

std::string QuantityTable(const std::vector<Quantity>& quantities) {
  std::vector<std::vector<std::string>> cells{{"number", "value", "residual", "device file"}};
  for (const Quantity& quantity : quantities) {
    cells.push_back(
        {quantity.name, Spell(quantity), Residual(quantity), quantity.in_device ? "yes" : ""});
  }
  return FormatTable(cells);
}

void Print(const Measurements& measurements, const std::vector<Quantity>& quantities,
           const View& view) {
  fmt::print("{}", FormatAs(view, CalibrationColumns(), quantities, "spillway.calibration/v1", [&] {
               return fmt::format("{}, driver {}, CUDA {}, {}\n\n{}\n{}{}\n{}{}",
                                  measurements.machine.gpu, measurements.machine.driver,
                                  measurements.machine.cuda, measurements.machine.date,
                                  CopyTable(measurements.copies), PeerTable(measurements),
                                  AllocationTable(measurements), LibraryTable(measurements),
                                  QuantityTable(quantities));
             }));
}

int Execute(const CalibrateCommand& command, Session& session) {
  CheckView(command.format.view(), CalibrationColumns());
  const fs::path output = command.output;
  if (output.extension() != ".toml") {
    throw UsageError(fmt::format("--output '{}' must end in .toml", command.output));
  }
  const fs::path raw = !command.raw.empty()
                           ? fs::path(command.raw)
                           : fs::path(output).replace_extension(".calibration.json");
  CheckFolder(output);
  CheckFolder(raw);
  fs::path base;
  if (!command.from.empty()) {
    base = DevicePath(command.from);
    ReadDevice(base);
  }
  Measurements measurements;
  if (!command.refit.empty()) {
    measurements = ReadMeasurements(command.refit);
  } else {
    const Machine gpu = Cuda().describe_gpu(command.device);
    if (base.empty()) base = FindBase(gpu);
    ProgressBar& bar = session.progress();
    bar.Note(fmt::format("calibrating {}, {}, compute capability {}", gpu.gpu,
                         FormatBytes(gpu.memory), gpu.compute_capability));
    CalibrateOptions measure = MakeOptions(command);
    measure.progress = [&](const CalibrateProgress& progress) {
      bar.Set(progress.step, progress.steps, progress.what);
    };
    measurements = Cuda().calibrate(measure);
    bar.Wipe();
    const auto guard = session.interrupts().Hold();
    WriteFile(raw, FormatMeasurements(measurements));
  }
  if (base.empty()) base = FindBase(measurements.machine);
  const fs::path source = command.refit.empty() ? raw : fs::path(command.refit);
  const std::vector<Quantity> quantities = FitMeasurements(measurements);
  const Machine& machine = measurements.machine;
  const bool described = Describes(ReadDevice(base), machine.gpu);
  const std::string text = MergeDevice(ReadFile(base, Bytes::MiB(1)), base.filename().string(),
                                       measurements, quantities, source.filename().string());
  {
    const auto guard = session.interrupts().Hold();
    WriteFile(output, text);
  }
  Print(measurements, quantities, command.format.view());
  if (!described) {
    session.progress().Note(fmt::format(
        "note: no device file describes '{}'{}: assumed host memory and efficiencies of {}, {}; "
        "--from names another",
        machine.gpu,
        machine.compute_capability.empty()
            ? ""
            : fmt::format(" (compute capability {})", machine.compute_capability),
        base.filename().string(),
        machine.flops > 0 ? "peak FLOP/s of its multiprocessors at their highest clock"
                          : "and its peak FLOP/s"));
  }
  return kOk;
}

}  // namespace

void AddCalibrate(Command& program, Session& session) {
  Command& verb = program.Add(
      "calibrate",
      "Measure copies, launches and allocations on this machine's GPU and write a device file; "
      "exit code 5 without one");
  verb.examples = {"calibrate -o mine.toml", "calibrate -o mine.toml --quick --from h200"};
  auto& command = verb.Runs(Execute, session);
  verb.Text("-o,--output", command.output, "Device file to write (.toml)").Required();
  verb.Text("--from", command.from,
            "Device name or file that gives what cannot be measured: peak FLOP/s, host "
            "memory, efficiencies; default: the one that describes this GPU, else the "
            "nearest by compute capability");
  const Option& raw = verb.Text("--raw", command.raw,
                                "File for all raw measurements (.json, .json.zst); default: beside "
                                "the device file, NAME.calibration.json");
  verb.Text("--refit", command.refit,
            "Fit the raw measurements of this file instead of measuring; needs no GPU")
      .Excludes(raw);
  verb.Number("--gpu", command.device, {0, 1 << 16}, "CUDA's number of the GPU");
  verb.Number("--peer", command.peer, {0, 1 << 16},
              "Also measure the link to the memory of another GPU, by CUDA's number, for "
              "--pool peer");
  verb.Flag("--quick", command.quick, "Fewer repeats and smaller sizes");
  command.format.Add(verb);
}

}  // namespace spillway::cli
