// Plans the compressed offload of a run: which storages the host keeps compressed, how much memory
// that saves, and how much time it costs. sim/core/compression.h explains compressed offload.
//
// The storages are chosen before the run, from their densities. A density is the share of a
// storage's 32-bit words that are not zero, as measured by a run on real bytes. Decisions and
// placements of a run are the same with and without compression, and trial runs of policies do not
// compress.

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

namespace spillway::lab {

// Densities by the name of a tensor, each in [0, 1].
using Densities = std::map<std::string, double>;

// Reads a CSV file whose first two columns are tensor,density; other columns are ignored. Throws
// `InputError` with path and line.
Densities ReadDensities(const std::filesystem::path& path);
// Parses the text of such a file. `origin` stands for the path in error messages.
Densities ParseDensities(std::string_view text, const std::string& origin);

// Compression as a user asks for it.
struct CompressionRequest {
  std::string text;               // as given
  bool only_hidden = false;       // compress only storages that do not make the iteration longer
  std::optional<double> density;  // the density of every feature map, if given
  std::string densities_file;     // empty: no file is given
  double saving = 0.1;            // a storage is compressed if this share of its bytes is saved
  double slower = 0;              // an iteration longer by this share still counts as hidden
  // The parameters of the host's compression. `kept` is not set; `threads` may be 0 and the rates
  // are not set until the device is known.
  HostCompression machine;
};

// Parses "all" or "hidden", then ":key=value,...". Throws `UsageError` if the text is invalid.
CompressionRequest ParseCompression(std::string_view text);
// Returns a description of the modes and keys for people.
std::string DescribeCompression();

// Compression on a device, with the storages that the host keeps compressed.
struct CompressionPlan : CompressionRequest {
  // The rates are those of the device; so is the number of threads if the request does not give it.
  // Throws `InputError` for a bad file of densities.
  CompressionPlan(const CompressionRequest& request, const Device& device);

  std::optional<Densities> densities;  // from the file, if there is one
  // Names of the storages to compress. nullopt: every feature map is compressed, for which a run on
  // real bytes needs no densities.
  std::optional<std::set<std::string>> chosen;
  std::optional<Duration> baseline;  // predicted iteration without compression

  // Returns the density of a tensor, or nullopt if it is unknown.
  std::optional<double> DensityOf(const Tensor& tensor) const;

  // Returns true if the iteration is at most `baseline`, plus its share `slower`. Returns false if
  // `baseline` is not set.
  bool Hides(Duration iteration) const;
};

// Returns the host's compression for `trace`, the trace that runs.
HostCompression CompressionOf(const CompressionPlan& plan, const Trace& trace);

// A storage that the host may keep compressed.
struct FeatureMap {
  std::string name;
  double density = 1;
};

// Returns the feature maps that left the device in a run and whose compression saves enough,
// ordered by storage. Feature maps of unknown density are left out.
std::vector<FeatureMap> WorthKeeping(const CompressionPlan& plan, const Trace& trace,
                                     const Report& report);

// A storage that was on the host during the iteration.
struct OffloadedStorage {
  TensorId storage{};
  Bytes size;
  std::optional<double> density;  // measured, otherwise from the plan; nullopt: unknown
  bool compressed = false;
  std::optional<Bytes> held;  // bytes in the compressed store: measured, otherwise predicted
};

// The memory and time that compression took in a run.
struct CompressionSummary {
  int64_t storages = 0;                     // number of storages kept compressed on the host
  Bytes staging;                            // pinned bytes of all staging buffers
  Bytes pinned_peak;                        // staging buffers and storages kept uncompressed
  Bytes pageable_peak;                      // most bytes of the compressed store at once
  Bytes plain_peak;                         // pinned memory of the same run without compression
  std::optional<Duration> baseline;         // predicted iteration without compression
  std::optional<bool> hides;                // set for simulated runs with a baseline
  std::optional<CompressionTimes> times;    // set for simulated runs
  std::vector<OffloadedStorage> offloaded;  // ordered by storage
  std::vector<StoredContents> stored;       // measured by a run on real bytes

  // Replaces predictions by the measurements of a run on real bytes: the contents of the compressed
  // store, and its largest size in bytes.
  void Measured(std::vector<StoredContents> contents, Bytes peak);
  // Returns the bytes of host memory that compression saves, which may be negative.
  Bytes saved() const { return plain_peak - pinned_peak - pageable_peak; }
};

// Summarizes a run that fits and whose host runs `compression`.
CompressionSummary Summarize(const CompressionPlan& plan, const HostCompression& compression,
                             const Trace& trace, const Report& report);

// Returns a CSV file with the columns tensor,density,bytes,compressed_bytes, which `ReadDensities`
// can read.
std::string FormatDensities(const Trace& trace, const std::vector<StoredContents>& stored);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_COMPRESSION_PLAN_H_
