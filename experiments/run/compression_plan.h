// Compressed offload as a property of a run: which storages the host keeps compressed, what that
// saves, and what it costs (sim/core/compression.h says how it works).
//
// Which storages is decided before the run, from their densities: the shares of their 32-bit words
// that are not zero, as a run on real bytes has measured them. Decisions and placements are those
// of the run without compression, and trial runs of policies do not see it either.

#ifndef SPILLWAY_EXPERIMENTS_RUN_COMPRESSION_PLAN_H_
#define SPILLWAY_EXPERIMENTS_RUN_COMPRESSION_PLAN_H_

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/compression.h"
#include "sim/core/device.h"
#include "sim/core/executor.h"
#include "sim/core/report.h"
#include "traces/base/params.h"
#include "traces/trace.h"

namespace spillway {

// By the name of a tensor; each in [0, 1].
using Densities = std::map<std::string, double>;

// Reads a CSV file whose first columns are tensor,density; further ones are not read. Throws
// `InputError` with path and line.
Densities ReadDensities(const std::filesystem::path& path);
Densities ParseDensities(std::string_view text, const std::string& origin);

// What is wanted, and once it is resolved, what is done.
struct CompressionPlan {
  bool only_hidden = false;       // not what would make the iteration longer
  std::optional<double> density;  // of every feature map
  std::optional<Densities> densities;
  double saving = 0.1;      // the least share of a storage's bytes that is worth it
  double slower = 0;        // by this share longer still counts as hidden
  HostCompression machine;  // all but `kept`
  std::string densities_file;

  // Names of the storages. Not set: every feature map, which needs no densities on real bytes.
  std::optional<std::set<std::string>> chosen;
  std::optional<Duration> baseline;  // of an iteration without compression, as predicted

  // Whether an iteration is as short as without compression. REQUIRES: `baseline` is set.
  bool Hides(Duration iteration) const;

  // nullopt if it is not known.
  std::optional<double> DensityOf(const Tensor& tensor) const;
};

// "all" or "hidden", then ":key=value,..."; DescribeCompression lists the keys. Rates and threads
// that are not given are the device's. Throws `UsageError`, and `InputError` for the file of
// densities.
CompressionPlan ParseCompression(std::string_view text, const Device& device);
std::string DescribeCompression();

// The plan applied to a trace, the one that runs.
HostCompression CompressionOf(const CompressionPlan& plan, const Trace& trace);

// A storage that compression may keep.
struct FeatureMap {
  std::string name;
  double density = 1;
};

// The feature maps of a run that left the device and save enough, by storage. Those of unknown
// density do not count.
std::vector<FeatureMap> WorthKeeping(const CompressionPlan& plan, const Trace& trace,
                                     const Report& report);

// A storage that was on the host during the iteration.
struct OffloadedStorage {
  TensorId storage{};
  Bytes size;
  std::optional<double> density;  // as measured, else as the plan has it; nullopt: not known
  bool compressed = false;
  std::optional<Bytes> held;  // in the compressed store: as measured, else as predicted
};

// What became of it.
struct CompressionSummary {
  int64_t storages = 0;                     // that went to the host and are kept compressed there
  Bytes staging;                            // pinned: all staging buffers
  Bytes pinned_peak;                        // those, and what is kept as it is
  Bytes pageable_peak;                      // most bytes of the compressed store at once
  Bytes plain_peak;                         // pinned memory of the same run without compression
  std::optional<Duration> baseline;         // of an iteration without compression, as predicted
  std::optional<bool> hides;                // of simulated runs with a baseline
  std::optional<CompressionTimes> times;    // of simulated runs
  std::vector<OffloadedStorage> offloaded;  // by storage
  std::vector<StoredContents> stored;       // of runs on real bytes

  // Takes over what a run on real bytes has measured.
  void Measured(std::vector<StoredContents> contents, Bytes peak);
  Bytes saved() const { return plain_peak - pinned_peak - pageable_peak; }
};

// Of a run that fits, whose host runs `compression`.
CompressionSummary Summarize(const CompressionPlan& plan, const HostCompression& compression,
                             const Trace& trace, const Report& report);

// tensor,density,bytes,compressed_bytes: what `ReadDensities` takes.
std::string FormatDensities(const Trace& trace, const std::vector<StoredContents>& stored);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_COMPRESSION_PLAN_H_
