#include "experiments/run/catalogue.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "experiments/run/other_links.h"
#include "sim/cost/interpolated.h"
#include "sim/cost/operator_table.h"
#include "sim/cost/recorded.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"
#include "traces/format.h"

namespace spillway {

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

// Returns the directory that the shared library with this code was loaded from, or an empty path if
// it is unknown. The path is found at run time because an installed tree can be moved.
fs::path LibraryDirectory() {
  static const char here = 0;  // lies in that library
  Dl_info info{};
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

}  // namespace

std::vector<fs::path> DataDirectories() {
  std::vector<fs::path> directories;
  if (const char* chosen = std::getenv("SPILLWAY_DATA")) directories.emplace_back(chosen);
  const fs::path library = LibraryDirectory();
  std::error_code ignored;
  const fs::path installed = library / SPILLWAY_DATA_FROM_LIBRARY;
  directories.push_back(fs::is_directory(installed, ignored) ? installed.lexically_normal()
                                                             : fs::path(SPILLWAY_SOURCE_DATA));
  return directories;
}

std::optional<fs::path> InstallPrefix() {
  const fs::path library = LibraryDirectory();
  std::error_code ignored;
  if (!fs::is_directory(library / SPILLWAY_DATA_FROM_LIBRARY, ignored)) return std::nullopt;
  return (library / SPILLWAY_PREFIX_FROM_LIBRARY / "").lexically_normal().parent_path();
}

std::optional<fs::path> FindDataFile(const fs::path& relative) {
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    if (fs::is_regular_file(directory / relative, ignored)) return directory / relative;
  }
  return std::nullopt;
}

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

std::string RecordedTableName(std::string_view network, int64_t batch) {
  return fmt::format("{}-{}.json.zst", network, batch);
}

fs::path RecordedTablePath(const std::string& device, std::string_view network, int64_t batch) {
  return fs::path("traces/recorded") / DeviceBase(device) / RecordedTableName(network, batch);
}

std::string TableNetwork(const Trace& trace) {
  return trace.network + (ArithmeticOf(trace) == "bf16" ? "-bf16" : "");
}

fs::path RecordedTablePath(const std::string& device, const Trace& trace) {
  return RecordedTablePath(device, TableNetwork(trace), BatchOfKernels(trace));
}

int64_t BatchOfKernels(const Trace& trace) {
  return trace.recording || trace.ops.empty() ? trace.batch : trace.ops.front().batch;
}

namespace {

// The nearest smaller and the nearest larger batch that have a recorded table.
struct BatchesAround {
  int64_t below, above;
};

// Returns the nearest batches that have tables of the network on the device. Returns nullopt if
// either of them does not exist, or if the batch itself has a table.
std::optional<BatchesAround> FindBatchesAround(const std::string& network, int64_t batch,
                                               const std::string& device) {
  BatchesAround around{0, std::numeric_limits<int64_t>::max()};
  const std::string before = network + "-";
  for (const fs::path& directory : DataDirectories()) {
    std::error_code ignored;
    const fs::path recorded = directory / "traces/recorded" / DeviceBase(device);
    for (const auto& entry : fs::directory_iterator(recorded, ignored)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with(before)) continue;
      int64_t other = 0;
      const auto [end, error] =
          std::from_chars(name.data() + before.size(), name.data() + name.size(), other);
      if (error != std::errc() || name != RecordedTableName(network, other)) continue;
      if (other == batch) return std::nullopt;
      if (other < batch) around.below = std::max(around.below, other);
      if (other > batch) around.above = std::min(around.above, other);
    }
  }
  if (around.below == 0 || around.above == std::numeric_limits<int64_t>::max()) {
    return std::nullopt;
  }
  return around;
}

bool Covers(const CostModel& cost, const Trace& trace) {
  try {
    for (const Op& op : trace.ops) {
      for (size_t slot = 0; slot < op.slots.size(); ++slot) cost.Kernels(op, slot, op.batch);
    }
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

std::optional<CostTable> FindRecordedTable(const Trace& trace, const Device& device) {
  const auto path = FindDataFile(RecordedTablePath(device.name, trace));
  if (!path) return std::nullopt;
  CostTable table = ReadCostTable(*path);
  return Covers(TableCostModel(table, device), trace) ? std::optional(std::move(table))
                                                      : std::nullopt;
}

namespace {

// Returns a cost model that interpolates between the nearest batches. Returns nullptr if there are
// no such batches, or if their tables do not cover the trace.
std::unique_ptr<CostModel> InterpolatedCost(const Trace& trace, const Device& device) {
  const std::string network = TableNetwork(trace);
  const auto around = FindBatchesAround(network, BatchOfKernels(trace), device.name);
  if (!around) return nullptr;
  const auto read = [&](int64_t batch) {
    const fs::path path = RecordedTablePath(device.name, network, batch);
    return BatchTable{batch, ReadCostTable(*FindDataFile(path))};
  };
  auto table = Interpolate(read(around->below), read(around->above), BatchOfKernels(trace));
  if (!table) return nullptr;
  auto cost = std::make_unique<InterpolatedCostModel>(
      *std::move(table), device,
      fmt::format("interpolated between the batches {} and {}", around->below, around->above));
  return Covers(*cost, trace) ? std::move(cost) : nullptr;
}

}  // namespace

std::optional<Device> DeviceOf(const std::string& gpu) {
  if (gpu.empty()) return std::nullopt;
  for (const std::string& name : DeviceNames()) {
    Device device = LoadDevice(name);
    if (std::ranges::count(device.gpus, gpu) != 0) return device;
  }
  return std::nullopt;
}

std::vector<fs::path> TablesOf(const std::string& network, int64_t batch,
                               const std::string& device) {
  std::vector<fs::path> paths{RecordedTablePath(device, network, batch)};
  if (const auto around = FindBatchesAround(network, batch, device)) {
    paths.push_back(RecordedTablePath(device, network, around->below));
    paths.push_back(RecordedTablePath(device, network, around->above));
  }
  return paths;
}

namespace {

// The ratio of arithmetic to memory bandwidth, which decides by what operators are bound.
double BalanceOf(const Device& device) {
  return static_cast<double>(MatrixRate(device, Arithmetic::kBf16)) /
         static_cast<double>(device.dram.bytes_per_second);
}

// Returns the path, below a data directory, of the table of operators for a device; nullopt if
// there is no table.
std::optional<fs::path> FindOperatorTable(const Device& device) {
  std::optional<fs::path> nearest;
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& name : DeviceNames()) {
    const fs::path path = fs::path("traces/recorded/operators") / (name + ".json.zst");
    if (!FindDataFile(path)) continue;
    const Device other = LoadDevice(name);
    const bool same = std::ranges::find_first_of(device.gpus, other.gpus) != device.gpus.end();
    const double distance = same ? -1 : std::abs(std::log(BalanceOf(device) / BalanceOf(other)));
    if (distance < least) {
      least = distance;
      nearest = path;
    }
  }
  return nearest;
}

// Returns the table of operators in a file, which is read once. Throws `InputError` if the file is
// not a trace that was recorded on a known GPU.
const OperatorTable& ReadOperatorTable(const fs::path& path) {
  static std::mutex mutex;
  static std::map<fs::path, OperatorTable> tables;
  const std::lock_guard lock(mutex);
  if (const auto found = tables.find(path); found != tables.end()) return found->second;
  const Trace measured = ReadTrace(path);
  const std::string gpu = measured.recording ? measured.recording->device : "";
  const std::optional<Device> there = DeviceOf(gpu);
  if (!there) {
    throw InputError(fmt::format(
        "{}: expected a trace that was recorded on a GPU with a device file, got one of {}",
        path.string(), gpu.empty() ? "no GPU" : "'" + gpu + "'"));
  }
  return tables.emplace(std::piecewise_construct, std::tuple(path), std::tie(measured, *there))
      .first->second;
}

// Gives a trace that was recorded without a GPU the times of the table of operators at `path`,
// which manifests call `file`. Throws the errors of `ReadOperatorTable`.
LoadedCost TimedCost(const Trace& trace, const Device& device, const fs::path& path,
                     const InputFile& file) {
  const OperatorTable& table = ReadOperatorTable(path);
  LoadedCost loaded;
  loaded.timed = std::make_shared<const Trace>(table.Timed(trace));
  const Recording& recording = *loaded.timed->recording;
  loaded.model = std::make_unique<RecordedCostModel>(
      recording, device, table.gpu(),
      fmt::format("estimated from operators of {}", recording.device));
  loaded.read.push_back(file);
  return loaded;
}

bool HasNoTimes(const Trace& trace) { return trace.recording && trace.recording->device.empty(); }

std::unique_ptr<const CostModel> FindCost(const Trace& trace, const Device& device) {
  if (trace.recording) {
    return std::make_unique<RecordedCostModel>(*trace.recording, device,
                                               DeviceOf(trace.recording->device));
  }
  if (auto table = FindRecordedTable(trace, device)) {
    // Policies slice ops only in inferences.
    return std::make_unique<TableCostModel>(
        std::move(*table), device,
        trace.training ? TableCostModel::Missing::kError : TableCostModel::Missing::kRoofline);
  }
  if (auto between = InterpolatedCost(trace, device)) return between;
  return std::make_unique<RooflineCostModel>(device);
}

}  // namespace

LoadedCost LoadCost(const CostSource& source, const Trace& trace, const Device& device) {
  LoadedCost loaded;
  if (source.roofline()) {
    loaded.model = std::make_unique<RooflineCostModel>(device);
  } else if (source.automatic()) {
    if (HasNoTimes(trace)) {
      if (const auto table = FindOperatorTable(device)) {
        return TimedCost(trace, device, *FindDataFile(*table), {"operator_table", "data", *table});
      }
    }
    loaded.model = FindCost(trace, device);
    const std::string network = TableNetwork(trace);
    for (const fs::path& path : TablesOf(network, BatchOfKernels(trace), device.name)) {
      loaded.read.push_back({"cost_table", "data", path});
    }
  } else {
    const std::string& path = source.text();
    std::error_code ignored;
    const bool is_path = path.find_first_of("./") != std::string::npos;
    if (!is_path && !fs::exists(path, ignored)) {
      throw UsageError(UnknownName("cost", path, {"auto", "roofline"}) +
                       ", or the path of a cost table");
    }
    if (HasNoTimes(trace)) {
      return TimedCost(trace, device, path, {"operator_table", "file", path});
    }
    loaded.model = std::make_unique<TableCostModel>(ReadCostTable(path), device);
    loaded.read.push_back({"cost_table", "file", path});
  }
  return loaded;
}

}  // namespace spillway
