// spillway new-device: a device file for a GPU that nobody has calibrated, from its data sheet.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/device_specification.h"
#include "sim/core/device.h"
#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json_writer.h"
#include "traces/base/units.h"
#include "traces/ops/data_type.h"

namespace spillway::cli {
namespace {

constexpr double kReachedBandwidth = 0.875;  // the share of a data sheet's bandwidth, as on an H200
constexpr double kReachedDuplex = 0.918;     // the share of both directions' sum, as on an H200
constexpr const char* kUsualLike = "h200";

struct NewDeviceOptions {
  std::string name, description, gpu, capability;
  std::string memory, flops, bandwidth;
  std::array<std::string, kArithmeticNames.size()> rates;  // by arithmetic; empty: no units for it
  std::string h2d, d2h;
  std::string like;  // empty: `kUsualLike`, but for the link
  std::string source = "data sheet", output;
};

// Throws `UsageError` unless `text`, the value of `option`, is a quantity of at least `least`.
template <typename Quantity>
void CheckQuantity(std::string_view option, const std::string& text,
                   Quantity (*parse)(std::string_view), Quantity least,
                   std::string_view least_name) {
  Quantity quantity{};
  try {
    quantity = parse(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
  if (quantity < least) {
    throw UsageError(
        fmt::format("{}: '{}' is too small, expected at least {}", option, text, least_name));
  }
}

// Throws `UsageError` if a text has more than one line or other control characters.
void CheckText(std::string_view option, const std::string& text) {
  if (std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; })) {
    throw UsageError(fmt::format("{}: expected one line of text", option));
  }
}

// Throws `UsageError` if a value cannot stand in a device file.
void Check(const NewDeviceOptions& options) {
  if (options.name.empty()) throw UsageError("the name of the device is empty");
  for (const auto& [option, text] : {std::pair{"name", &options.name},
                                     {"--description", &options.description},
                                     {"--gpu", &options.gpu},
                                     {"--capability", &options.capability},
                                     {"--source", &options.source}}) {
    CheckText(option, *text);
  }
  CheckQuantity("--memory", options.memory, ParseBytes, Bytes(1), "1 B");
  CheckQuantity("--flops", options.flops, ParseFlopRate, int64_t{1}, "1 FLOP/s");
  for (size_t i = 0; i < options.rates.size(); ++i) {
    const std::string& text = options.rates[i];
    if (text.empty()) continue;
    CheckQuantity(fmt::format("--{}", kArithmeticNames[i]), text, ParseFlopRate, int64_t{1},
                  "1 FLOP/s");
  }
  for (const auto& [option, text] : {std::pair{"--bandwidth", &options.bandwidth},
                                     {"--h2d", &options.h2d},
                                     {"--d2h", &options.d2h}}) {
    if (text->empty() && text != &options.bandwidth) continue;
    CheckQuantity(option, *text, ParseBandwidth, Device::kLeastBandwidth, "1 MB/s");
  }
}

// Returns the text, which has no control characters, as a string of TOML: it is that of JSON.
std::string Quoted(const std::string& text) {
  std::string quoted;
  AppendJsonString(quoted, text);
  return quoted;
}

// Returns the lines of the sections of a device file whose headers begin with one of `sections`,
// each number marked as an estimate.
std::string SectionsOf(std::string_view file, std::span<const std::string_view> sections,
                       const std::string& like) {
  std::string text;
  bool copies = false;
  while (!file.empty()) {
    const size_t end = std::min(file.find('\n'), file.size());
    std::string_view line = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    if (line.starts_with('[')) {
      copies = std::ranges::any_of(
          sections, [&](std::string_view section) { return line.starts_with(section); });
      if (copies) text += fmt::format("\n{}\n", line);
    } else if (copies && line.find('=') < line.find('#')) {
      const auto trimmed = [](std::string_view part) {
        part = part.substr(std::min(part.size(), part.find_first_not_of(" \t")));
        return part.substr(0, part.find_last_not_of(" \t\r") + 1);
      };
      const size_t equals = line.find('=');
      text += fmt::format("{} = {}  # estimate: as in {}.toml\n", trimmed(line.substr(0, equals)),
                          trimmed(line.substr(equals + 1, line.find('#') - equals - 1)), like);
    }
  }
  return text;
}

std::string RateText(double bytes_per_second) {
  return bytes_per_second < 1e8 ? fmt::format("{:.1f}MB/s", bytes_per_second / 1e6)
                                : fmt::format("{:.1f}GB/s", bytes_per_second / 1e9);
}

double BytesPerSecond(const std::string& text) {
  return static_cast<double>(ParseBandwidth(text).bytes_per_second);
}

// Returns the section [link] with the rates that were given: that of the device of --like, or
// without one that of a usual slot, which is slower than an H200's.
std::string LinkOf(const NewDeviceOptions& options, std::string_view file) {
  constexpr std::string_view kLink[] = {"[link]"};
  constexpr std::string_view kUsual =
      "\n[link]\n"
      "h2d = \"25GB/s\"  # estimate: usual for pinned copies, unless it was measured\n"
      "h2d_latency = \"5us\"  # estimate: usual for a cudaMemcpyAsync of a few bytes\n"
      "d2h = \"25GB/s\"  # estimate: as h2d\n"
      "d2h_latency = \"5us\"  # estimate: as h2d_latency\n"
      "duplex = \"45.9GB/s\"  # estimate: 0.918 of the sum of both, as on an H200\n";
  std::string text =
      options.like.empty() ? std::string(kUsual) : SectionsOf(file, kLink, options.like);
  const auto set = [&](std::string_view key, const std::string& value, const std::string& source) {
    const size_t begin = text.find(fmt::format("\n{} = ", key)) + 1;
    text.replace(begin, text.find('\n', begin) - begin,
                 fmt::format("{} = \"{}\"  # {}", key, value, source));
  };
  const auto rate = [&](std::string_view key) {
    const size_t begin = text.find('"', text.find(fmt::format("\n{} = ", key))) + 1;
    return BytesPerSecond(text.substr(begin, text.find('"', begin) - begin));
  };
  const std::string source = fmt::format("source: {}", options.source);
  if (!options.h2d.empty()) set("h2d", options.h2d, source);
  if (!options.d2h.empty()) set("d2h", options.d2h, source);
  if (!options.h2d.empty() || !options.d2h.empty()) {
    set("duplex", RateText(kReachedDuplex * (rate("h2d") + rate("d2h"))),
        fmt::format("estimate: {} of the sum of both, as on an H200", kReachedDuplex));
  }
  return text;
}

std::string FileOf(const NewDeviceOptions& options) {
  const std::string like = options.like.empty() ? kUsualLike : options.like;
  const std::string file = ReadFile(DevicePath(like));
  std::string text = fmt::format(
      "# {0}.\n"
      "# Written by spillway new-device. Each number has its source beside it; \"estimate\" marks "
      "a\n"
      "# number that the source does not give.\n\n"
      "description = {1}\n"
      "library = \"cuDNN 9\"  # estimate: the library of {2}.toml\n",
      options.description, Quoted(options.description), like);
  if (!options.gpu.empty()) text += fmt::format("gpus = [{}]\n", Quoted(options.gpu));
  if (!options.capability.empty()) {
    text += fmt::format("compute_capability = {}\n", Quoted(options.capability));
  }
  text += fmt::format(
      "\n[memory]\n"
      "size = \"{}\"  # source: {}\n"
      "alignment = \"512B\"  # source: the granularity of PyTorch's caching allocator\n"
      "host = \"64GiB\"  # estimate: usual for a workstation\n"
      "\n[compute]\n"
      "flops = \"{}\"  # source: {}, fp32 without tensor cores\n"
      "dram = \"{}\"  # estimate: {} of {} ({}), as on an H200\n",
      options.memory, options.source, options.flops, options.source,
      RateText(kReachedBandwidth * BytesPerSecond(options.bandwidth)), kReachedBandwidth,
      options.bandwidth, options.source);
  for (size_t i = 0; i < options.rates.size(); ++i) {
    if (options.rates[i].empty()) continue;
    text += fmt::format("{} = \"{}\"  # source: {}, dense, sums in fp32\n", kArithmeticNames[i],
                        options.rates[i], options.source);
  }
  constexpr std::string_view kCosts[] = {"[beside_copy]", "[host]", "[driver]", "[efficiency"};
  return text + LinkOf(options, file) + SectionsOf(file, kCosts, like);
}

int Execute(const NewDeviceOptions& given, Session& session) {
  Check(given);
  NewDeviceOptions options = given;
  if (options.output.empty()) options.output = options.name + ".toml";
  if (options.description.empty())
    options.description = options.gpu.empty() ? options.name : options.gpu;
  if (std::filesystem::exists(options.output)) {
    throw UsageError(fmt::format("{} exists already; nothing was written", options.output));
  }
  const std::string text = FileOf(options);
  try {
    ParseDevice(text, options.output);
  } catch (const InputError& error) {  // for example for a capability that is none
    throw UsageError(fmt::format("the options give no valid device file: {}", error.what()));
  }
  WriteFile(options.output, text);
  session.Remark(
      fmt::format("wrote {0}; next: spillway fit STEP.json.zst --device {0}", options.output));
  return kOk;
}

}  // namespace

void AddNewDevice(Command& program, Session& session) {
  Command& verb = program.Add(
      "new-device",
      "Write a device file for your own GPU from the numbers of its data sheet; spillway calibrate "
      "measures them where the GPU is");
  verb.examples = {
      "new-device mine --memory 24GiB --flops 82.6TFLOP/s --bandwidth 1008GB/s --bf16 165.2TFLOP/s",
      "new-device my-a100 --like a100 --memory 40GiB --flops 19.5TFLOP/s --bandwidth 1555GB/s"};
  auto& options = verb.Runs(Execute, session);
  verb.Text("name", options.name, "Name of the device and of the file, NAME.toml").Required();
  verb.Text("--memory", options.memory,
            "Memory of the GPU; best is the total capacity that PyTorch prints (23.64GiB)")
      .Required();
  verb.Text("--flops", options.flops, "fp32 without tensor cores (82.6TFLOP/s)").Required();
  verb.Text("--bandwidth", options.bandwidth, "Bandwidth of the memory (1008GB/s)").Required();
  for (const Arithmetic arithmetic :
       {Arithmetic::kTf32, Arithmetic::kBf16, Arithmetic::kFp16, Arithmetic::kFp8}) {
    verb.Text(fmt::format("--{}", Name(arithmetic)), options.rates[static_cast<size_t>(arithmetic)],
              fmt::format("Dense matrix products in {} with sums in fp32; half of what a data "
                          "sheet says with sparsity",
                          Name(arithmetic)));
  }
  verb.Text("--h2d", options.h2d,
            "Copies from pinned host memory to the GPU (default: as --like; without it 25GB/s)");
  verb.Text("--d2h", options.d2h,
            "Copies from the GPU to pinned host memory (default: as --like; without it 25GB/s)");
  verb.Text("--gpu", options.gpu, "The GPU as its driver calls it (NVIDIA GeForce RTX 4090)");
  verb.Text("--capability", options.capability, "Compute capability (8.9)");
  verb.Text("--description", options.description, "A title (default: the name of the GPU)");
  verb.Text("--like", options.like,
            "A device from which the link and the costs of host, driver and kernels are taken "
            "(default: h200, but for the link)");
  verb.Text("--source", options.source, "Where the numbers come from, for the comments");
  verb.File("-o,--output", options.output, "The file to write (default: NAME.toml)");
}

}  // namespace spillway::cli
