#include "experiments/run/device_specification.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "experiments/run/data_files.h"
#include "experiments/run/other_links.h"
#include "traces/base/error.h"

namespace spillway::lab {

namespace fs = std::filesystem;

namespace {

constexpr const char* kItsOwn = "as it is";
constexpr const char* kPool = "pool";

// Sets `quantity` to the value of the parameter `name`, if that was given. Throws `UsageError`,
// which names the limits as `range`, if the value is not from `least` to `greatest`.
template <typename Quantity>
void ChangeTo(Quantity& quantity, Quantity least, Quantity greatest, const char* range,
              Quantity (*parse)(std::string_view), Params& params, const std::string& name,
              const char* type, const char* help, const char* what = "device") {
  const std::string text = params.Text(name, type, kItsOwn, help);
  if (text == kItsOwn) return;
  try {
    quantity = parse(text);
  } catch (const InputError& error) {
    throw UsageError(fmt::format("{}: {}: {}", what, name, error.what()));
  }
  if (quantity < least || quantity > greatest) {
    throw UsageError(fmt::format("{}: {}: '{}' is too {}, expected {}", what, name, text,
                                 quantity < least ? "small" : "large", range));
  }
}

// Reads the factor by which the link is faster. Throws `UsageError` unless it is from 0.001 to
// 1000.
double LinkFactor(Params& params) {
  const std::string text = params.Text("link", "number", "1",
                                       "how many times as fast the link is, in each direction and "
                                       "in both together");
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(factor >= 0.001 && factor <= 1000)) {
    throw UsageError(
        fmt::format("device: link: '{}' is not a number from 0.001 to 1000, such as 2", text));
  }
  return factor;
}

// Applies the parameters to the device.
void Change(Device& device, Params& params) {
  const double factor = LinkFactor(params);
  const auto change_rate = [&](Bandwidth& rate, const char* name, const char* help) {
    rate = Scaled(rate, factor);
    ChangeTo(rate, Device::kLeastBandwidth, kFastestLink, "at least 1 MB/s", ParseBandwidth, params,
             name, "rate", help);
  };
  change_rate(device.h2d.bandwidth, "h2d", "of copies to the device");
  change_rate(device.d2h.bandwidth, "d2h", "of copies to the host");
  change_rate(device.duplex, "duplex", "of both directions together");
  ChangeTo(device.launch_overhead, Duration(), Device::kMaxTime, "at most 1000 s", ParseDuration,
           params, "launch_overhead", "time", "host time to enqueue a kernel or copy");
  const auto change_size = [&](Bytes& size, const char* name, const char* help) {
    ChangeTo(size, Bytes(1), Bytes::Unlimited(), "at least 1 B", ParseBytes, params, name, "size",
             help);
  };
  change_size(device.memory, "memory", "memory of the device");
  change_size(device.host_memory, "host", "host memory");
}

// Returns the pool `known` with the changes that the parameters give.
ExternalPool ReadPool(const ExternalPool& known, Params& params) {
  ExternalPool pool = known;
  ChangeTo(pool.size, Bytes(1), Bytes::Unlimited(), "at least 1 B", ParseBytes, params, "size",
           "size", "how much of it there is to use", kPool);
  const auto rate = [&](Bandwidth& bandwidth, const char* name, const char* help) {
    ChangeTo(bandwidth, Device::kLeastBandwidth, kFastestLink, "at least 1 MB/s", ParseBandwidth,
             params, name, "rate", help, kPool);
  };
  const auto latency = [&](Duration& time, const char* name, const char* help) {
    ChangeTo(time, Duration(), Device::kMaxTime, "at most 1000 s", ParseDuration, params, name,
             "time", help, kPool);
  };
  rate(pool.in.bandwidth, "in", "of copies to the device");
  latency(pool.in.latency, "in_latency", "of each of them");
  rate(pool.out.bandwidth, "out", "of copies from the device");
  latency(pool.out.latency, "out_latency", "of each of them");
  rate(pool.duplex, "duplex", "of both directions together");
  pool.over_host =
      params.Enum<bool>("over", pool.over_host ? "host" : "own", {{"own", false}, {"host", true}},
                        "whether its link is the host's, shared with it, or its own");
  const std::string gpu =
      params.Text("gpu", "number", std::to_string(pool.gpu),
                  "of a peer: CUDA's number, from 1 up; 0 is the device itself");
  const auto [end, error] = std::from_chars(gpu.data(), gpu.data() + gpu.size(), pool.gpu);
  if (error != std::errc() || end != gpu.data() + gpu.size() || pool.gpu < 1 || pool.gpu > 1023) {
    throw UsageError(fmt::format(
        "pool: gpu: '{}' is no other GPU than 0, the device itself (valid: 1 to 1023)", gpu));
  }
  return pool;
}

}  // namespace

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory / "sim/devices", ignored)) {
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path DevicePath(const std::string& name) {
  if (name.ends_with(".toml")) return name;
  const auto path = FindDataFile(fs::path("sim/devices") / (name + ".toml"));
  if (!path) throw UsageError(UnknownName("device", name, DeviceNames()));
  return *path;
}

std::string DeviceBase(const std::string& specification) {
  return specification.substr(0, specification.find(':'));
}

Device LoadDevice(const std::string& specification) {
  const std::string base = DeviceBase(specification);
  Device device = ReadDevice(DevicePath(base));
  if (base == specification) return device;
  const auto given = ParseSpecification("device", specification);
  Params params(fmt::format("device '{}'", base), given.values);
  Change(device, params);
  params.Finish();
  const std::string changes = specification.substr(base.size() + 1);
  device.name += ":" + changes;
  device.description += ", " + changes;
  return device;
}

void AddPool(Device& device, const std::string& specification) {
  using Kind = ExternalPool::Kind;
  const auto given = ParseSpecification(kPool, specification);
  Params params(fmt::format("pool '{}'", given.name), given.values);
  const bool named = device.name.find(':') != std::string::npos;
  device.name += fmt::format("{}pool={}", named ? "," : ":", specification);
  device.description += fmt::format(", pool {}", specification);
  if (given.name == "host") {
    ChangeTo(device.host_memory, Bytes(1), Bytes::Unlimited(), "at least 1 B", ParseBytes, params,
             "size", "size", "how much of it there is to use", kPool);
    return params.Finish();
  }
  std::vector<std::string> names{"host"};
  std::optional<Kind> kind;
  for (const Kind known : {Kind::kPeer, Kind::kRemote, Kind::kNvme}) {
    names.emplace_back(Name(known));
    if (given.name == Name(known)) kind = known;
  }
  if (!kind) throw UsageError(UnknownName("pool", given.name, names));
  auto known = std::ranges::find(device.pools, *kind, &ExternalPool::kind);
  if (known == device.pools.end()) {
    if (device.pools.size() + 1 == kMaxPools) {
      throw UsageError(fmt::format("pool '{}': a device has at most {} pools besides the host's",
                                   given.name, kMaxPools - 1));
    }
    ExternalPool pool;
    pool.kind = *kind;
    pool.over_host = *kind != Kind::kPeer;
    const auto described = std::ranges::find(device.known_pools, *kind, &ExternalPool::kind);
    known = device.pools.insert(known, described == device.known_pools.end() ? pool : *described);
  }
  *known = ReadPool(*known, params);
  params.Finish();
  for (const auto& [link, name] : {std::pair(known->in, "in"), std::pair(known->out, "out")}) {
    if (link.bandwidth.bytes_per_second > 0) continue;
    throw UsageError(
        fmt::format("pool '{}': device '{}' does not say how fast its link is: give "
                    "{}=RATE, such as {}=25GB/s",
                    given.name, DeviceBase(device.name), name, name));
  }
  if (known->duplex.bytes_per_second == 0) {
    known->duplex = {known->in.bandwidth.bytes_per_second + known->out.bandwidth.bytes_per_second};
  }
  if (known->size == Bytes(0)) {
    throw UsageError(fmt::format("pool '{0}': give its size, such as {0}:size=40GiB", given.name));
  }
}

std::vector<ParamInfo> PoolParameters() {
  Params params(kPool, {});
  ReadPool({}, params);
  return params.declared();
}

std::vector<ParamInfo> DeviceParameters() {
  Device device;
  Params params("device", {});
  Change(device, params);
  return params.declared();
}

std::optional<Device> DeviceOf(const std::string& gpu) {
  if (gpu.empty()) return std::nullopt;
  for (const std::string& name : DeviceNames()) {
    Device device = LoadDevice(name);
    if (std::ranges::count(device.gpus, gpu) != 0) return device;
  }
  return std::nullopt;
}

}  // namespace spillway::lab
