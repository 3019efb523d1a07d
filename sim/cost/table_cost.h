// Cost tables on disk, and the cost model that serves them.
//
// A table holds the measurements of a recorder on one GPU with one library version;
// traces/FORMAT.md describes the file.

#ifndef SPILLWAY_SIM_COST_TABLE_COST_H_
#define SPILLWAY_SIM_COST_TABLE_COST_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/cost_table.h"
#include "sim/core/device.h"
#include "sim/cost/roofline.h"

namespace spillway::sim {

// Reads a table, which may be compressed with Zstandard. Entries are sorted by signature and batch,
// kernels by time, workspace and name, whatever their order in the file. Throws `InputError` whose
// message starts with "path:line:column: element". The reasons are bad JSON, an unsupported
// version, a missing or unknown key, a wrong type, a time that is not positive or beyond 1000 s, an
// entry without kernels, and a repeated entry.
CostTable ReadCostTable(const std::filesystem::path& path);

// Parses the text of a table like `ReadCostTable`; `origin` stands for the path in messages.
CostTable ParseCostTable(std::string_view text, const std::string& origin);

// Returns the JSON text of `table`, in the order that `ReadCostTable` gives: equal contents give
// equal bytes. Throws `InputError` for a table that could not be read back.
std::string FormatCostTable(const CostTable& table);

// Writes `FormatCostTable(table)`, compressed if `path` ends in ".zst". Throws `InputError`.
void WriteCostTable(const CostTable& table, const std::filesystem::path& path);

// Serves recorded tables. The time of a kernel is its recorded time plus its table's `in_sequence`.
// A micro-batch is looked up like any batch, so it must have been recorded. Safe to use from
// several threads.
class TableCostModel final : public CostModel {
 public:
  // The answer for an entry that the tables lack: an error, or the roofline's kernels. The roofline
  // serves policies that cut ops into slices of any size.
  enum class Missing : uint8_t { kError, kRoofline };

  // If several tables have an entry, the first table counts. `device` supplies the links and need
  // not outlive the model. Throws `InputError` if there is no table, or if two tables differ in
  // gpu, cudnn or math, because such times must not be mixed.
  TableCostModel(std::vector<CostTable> tables, const Device& device,
                 Missing missing = Missing::kError);
  TableCostModel(CostTable table, const Device& device, Missing missing = Missing::kError);

  std::vector<int64_t> Batches(const Op& op, size_t slot) const override;
  std::span<const Kernel> Kernels(const Op& op, size_t slot, int64_t batch) const override;
  Duration CopyTime(Direction direction, Bytes size) const override;
  std::string Provenance() const override;
  // Signatures say what is in bfloat16; the table's arithmetic is that of products of float32.
  std::string ArithmeticFor(const Trace& trace) const override {
    const std::string arithmetic = ArithmeticOf(trace);
    return arithmetic == "bf16" ? arithmetic : provenance_.math;
  }

 private:
  void Add(CostTable table);

  // By signature and batch. Only the batches of one signature are iterated.
  std::unordered_map<std::string, std::map<int64_t, std::vector<Kernel>>> kernels_;
  sim::Provenance provenance_;  // the first table's provenance
  std::optional<RooflineCostModel> rest_;
  Link h2d_;
  Link d2h_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_TABLE_COST_H_
