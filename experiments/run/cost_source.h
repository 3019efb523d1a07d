// Finds the kernel times that a command names, and the recorded tables that come with the program.

#ifndef SPILLWAY_EXPERIMENTS_RUN_COST_SOURCE_H_
#define SPILLWAY_EXPERIMENTS_RUN_COST_SOURCE_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/run/data_files.h"
#include "sim/core/cost_model.h"
#include "sim/core/cost_table.h"
#include "sim/core/device.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the table that "auto" finds for the workload on the device; nullopt if no recorded table
// covers the trace.
std::optional<CostTable> FindRecordedTable(const Trace& trace, const Device& device);

// A source of kernel times as a user names it.
class CostSource {
 public:
  // `text` is "auto", "roofline" or the path of a cost table. "auto" takes the first source that
  // exists:
  // 1. the times recorded with the trace;
  // 2. the table recorded for this workload on this device (`FindRecordedTable`); for an inference,
  //    slices that a policy makes and the table lacks get roofline times;
  // 3. times interpolated between the nearest batches, if their tables cover the trace;
  // 4. the roofline.
  CostSource(std::string text) : text_(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  CostSource(const char* text) : text_(text) {}             // NOLINT(google-explicit-constructor)

  // Returns the text that the constructor was given.
  const std::string& text() const { return text_; }
  bool automatic() const { return text_ == "auto"; }
  bool roofline() const { return text_ == "roofline"; }
  bool table() const { return !automatic() && !roofline(); }

  bool operator==(const CostSource&) const = default;

 private:
  std::string text_;
};

// Returns the tables that "auto" reads for a network and batch on a device, as paths below a data
// directory. The first is the table of this batch. If that table does not exist, and tables of a
// smaller and a larger batch do, the tables of the nearest batch below and above follow.
std::vector<std::filesystem::path> TablesOf(const std::string& network, int64_t batch,
                                            const std::string& device);

// A cost model and the files that it depends on.
struct LoadedCost {
  std::unique_ptr<const CostModel> model;
  // The trace with the times of a table of operators; nullptr if no table is used.
  std::shared_ptr<const Trace> timed = nullptr;
  std::vector<InputFile> read;  // includes tables that "auto" looked for and that do not exist
};

// Makes the cost model for a source, which for a trace that was recorded without a GPU may be the
// path of a table of operators. Without a path, the table of the device counts, or else that of
// the device with the most similar ratio of arithmetic to bandwidth (traces/recorded/operators). A
// table that others have published of some of the device's operators counts before these.
// Throws `UsageError` if the source is neither a known name nor a file, and `InputError` for a bad
// table.
LoadedCost LoadCost(const CostSource& source, const Trace& trace, const Device& device);

// Returns the file name of a recorded cost table: "NETWORK-BATCH.json.zst".
std::string RecordedTableName(std::string_view network, int64_t batch);

// Returns the path, below a data directory, of the recorded cost table of a network and batch.
// `spillway record` writes the table there, and "auto" looks for it there. The path is under
// traces/recorded/DEVICE, where DEVICE is `DeviceBase(device)`.
std::filesystem::path RecordedTablePath(const std::string& device, std::string_view network,
                                        int64_t batch);
// Returns the network of a trace as the names of tables have it: with "-bf16" if that is the
// precision of its products.
std::string TableNetwork(const Trace& trace);
// Returns the path of the table of the trace's network, precision and batch.
std::filesystem::path RecordedTablePath(const std::string& device, const Trace& trace);
// Returns the batch of the trace's forward pass, which is that of a micro-batch if there are
// several in an iteration.
int64_t BatchOfKernels(const Trace& trace);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_COST_SOURCE_H_
