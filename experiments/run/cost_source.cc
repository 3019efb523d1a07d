#include "experiments/run/cost_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "experiments/run/device_specification.h"
#include "sim/cost/interpolated.h"
#include "sim/cost/operator_table.h"
#include "sim/cost/recorded.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table_cost.h"
#include "traces/base/error.h"
#include "traces/format.h"

namespace spillway::lab {

namespace fs = std::filesystem;

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

bool SameGpu(const Device& one, const Device& other) {
  return std::ranges::find_first_of(one.gpus, other.gpus) != one.gpus.end();
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
    const double distance =
        SameGpu(device, other) ? -1 : std::abs(std::log(BalanceOf(device) / BalanceOf(other)));
    if (distance < least) {
      least = distance;
      nearest = path;
    }
  }
  return nearest;
}

// Returns the path, below a data directory, of the table of operators of a device's GPU that others
// have published; nullopt if there is none.
std::optional<fs::path> FindPublishedTable(const Device& device) {
  for (const std::string& name : DeviceNames()) {
    const fs::path path = fs::path("traces/recorded/operators/published") / (name + ".json.zst");
    if (FindDataFile(path) && SameGpu(device, LoadDevice(name))) return path;
  }
  return std::nullopt;
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

// Gives it the times of a published table of the device's GPU, and for what that lacks, of a table
// of another GPU. Both are paths below a data directory.
LoadedCost TimedByBoth(const Trace& trace, const Device& device, const fs::path& published,
                       const fs::path& other) {
  const OperatorTable& own = ReadOperatorTable(*FindDataFile(published));
  const OperatorTable& lacking = ReadOperatorTable(*FindDataFile(other));
  LoadedCost loaded;
  loaded.timed = std::make_shared<const Trace>(own.TimedOver(lacking, trace));
  const Recording& recording = *loaded.timed->recording;
  loaded.model = std::make_unique<RecordedCostModel>(
      recording, device, own.gpu(),
      fmt::format(
          "estimated from published operators of {}, and of {} where there are none, scaled "
          "by the rooflines",
          recording.device, lacking.gpu().gpus.front()));
  for (const fs::path& path : {published, other}) {
    loaded.read.push_back({"operator_table", "data", path});
  }
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
      const auto table = FindOperatorTable(device);
      if (const auto published = FindPublishedTable(device); published && table) {
        return TimedByBoth(trace, device, *published, *table);
      }
      if (table) {
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

}  // namespace spillway::lab
