// Finds what a command names: workloads, devices, recorded cost tables and memory budgets.
//
// Data files come with the program. They are looked for in the directory named by the environment
// variable SPILLWAY_DATA, then in the tree that the program is installed in, wherever that was
// moved to; a program that is not installed finds them in the source tree that it was built from.

#ifndef SPILLWAY_EXPERIMENTS_RUN_CATALOGUE_H_
#define SPILLWAY_EXPERIMENTS_RUN_CATALOGUE_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/cost_table.h"
#include "sim/core/device.h"
#include "traces/base/params.h"
#include "traces/trace.h"

namespace spillway {

// "a,b:x=1,y=[2,3],c": a comma separates specifications, and also the parameters of one.
std::vector<std::string> SplitSpecifications(const std::vector<std::string>& texts);

// The directory that this program is installed under; nullopt if it runs from a build tree.
std::optional<std::filesystem::path> InstallPrefix();

// Where data files are looked for, in that order; they need not exist.
std::vector<std::filesystem::path> DataDirectories();

// A data file by its path under sim/devices, traces/recorded or experiments; nullopt if no data
// directory has it.
std::optional<std::filesystem::path> FindDataFile(const std::filesystem::path& relative);

// The device whose drivers report this name; nullopt if there is no file of it.
std::optional<Device> DeviceOf(const std::string& gpu);

// Names of the devices that come with the program, sorted.
std::vector<std::string> DeviceNames();

// `name` is one of `DeviceNames` or the path of a device file (it ends in ".toml"). Throws
// `UsageError` with a suggestion for an unknown name.
std::filesystem::path DevicePath(const std::string& name);

// A name or path as for `DevicePath`, without a colon, and what is to be different there:
// "h200:link=2,host=64GiB". The device is then named and described with it. Only what no kernel
// time depends on can be changed, so that recorded times stay valid. Throws `UsageError`.
Device LoadDevice(const std::string& specification);
// What can be changed, of any device.
std::vector<ParamInfo> DeviceParameters();
// Gives the device memory outside, or changes what it has: "peer:size=40GiB" or "host:size=64GiB".
// What is not given of a link is as the device file says. The device is then named with it. Throws
// `UsageError`.
void AddPool(Device& device, const std::string& specification);
// What can be given.
std::vector<ParamInfo> PoolParameters();
// The name or path alone.
std::string DeviceBase(const std::string& specification);

// What the host takes before each launch, of a recorded trace.
enum class HostTimes : uint8_t {
  kPlain,     // without the profiler that recorded it: at most `kOperatorTime` for each operator
  kRecorded,  // with it
  kNone,      // nothing: the GPU never waits for the host
};

// What PyTorch takes on the host for an operator that nobody watches; under its profiler, with
// shapes and memory, it is three to eight times as much. Chosen on the plain steps of ten
// recordings on an H100 and two H200 (experiments/evidence/pytorch/README.md).
inline constexpr Duration kOperatorTime = Duration::Microseconds(7);

// A recorded trace, as it was imported, with the host's times changed so; others stay as they are.
Trace WithHostTimes(Trace trace, HostTimes host);

struct WorkloadOptions {
  std::string preset = "torch";
  bool training = true;
  HostTimes host = HostTimes::kPlain;
};

// `text` is NETWORK:BATCH, or the path of a trace file (it ends in ".json" or ".zst"), for which
// preset and mode do not matter. Throws `UsageError` or `InputError`.
Trace LoadWorkload(const std::string& text, const WorkloadOptions& options);

// The table that "auto" finds for the workload on the device; nullopt if none was recorded that
// covers the trace.
std::optional<CostTable> FindRecordedTable(const Trace& trace, const Device& device);

// The nearest batches below and above of which there are tables of the network on the device;
// nullopt unless there are both, or if there is one of this batch.
struct BatchesAround {
  int64_t below, above;
};
std::optional<BatchesAround> FindBatchesAround(const std::string& network, int64_t batch,
                                               const std::string& device);

// `source` is "auto" (of a recorded trace what was recorded with it; else the table recorded for
// this workload on this device (`FindRecordedTable`), and the roofline for slices that a policy
// makes and the table lacks; else between those of the nearest batches, if there are
// such and they cover the trace; else the roofline), "roofline", or the path of a cost table.
std::unique_ptr<CostModel> LoadCost(const std::string& source, const Trace& trace,
                                    const Device& device);

// "NETWORK-BATCH.json.zst", of a cost table.
std::string RecordedTableName(std::string_view network, int64_t batch);

// The data file of such a table.
std::filesystem::path RecordedTablePath(const std::string& device, std::string_view network,
                                        int64_t batch);

// Where `spillway record` puts, and "auto" looks for, the table of a workload: under
// traces/recorded/DEVICE, whatever is different on the device.
std::filesystem::path RecordedTablePath(const std::string& device, const Trace& trace);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_CATALOGUE_H_
