// A paper as tables whose cells this program computes.
//
// A table has an item for each of its rows and columns. The column's pattern names the item, and
// the row fills the holes of the pattern: {workload}, a network and its batch as the paper writes
// them; {batch}, a batch alone; {number}; {step}, a count from 1; {layer}, a word; {device}, a GPU.
// A user may name an item that no row has, such as one of another workload: the pattern then gives
// the row. The numbers that the papers print are in paper-values.csv. A table is computed on the
// GPU of its paper or on another one.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_PAPER_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_PAPER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "sim/core/report.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {

using Computed = std::optional<double>;

// A number that a paper prints, or an item of which it prints none. `evidence` says how it is
// judged: an item with "=" must agree to the printed digits, with "c" within 1 %, with "~" within
// 2 %; "f" (a fit) and "x" (not explained) are shown and not judged.
struct PaperValue {
  std::string paper;
  std::string item;
  std::string workload;
  std::string unit;
  Computed printed;  // nullopt if the paper does not print it
  int decimals = 0;  // printed digits after the decimal point
  std::string evidence;
};
using PaperValues = std::vector<PaperValue>;

// Returns the number that the whole text is; nullopt if it is none.
Computed ReadNumber(std::string_view text);

// Returns the value of a paper's item; nullptr if the list lacks the item.
const PaperValue* FindValue(const PaperValues& values, std::string_view paper,
                            std::string_view item);

// Returns the number that a paper prints for an item; nullopt if it prints none.
Computed PrintedNumber(const PaperValues& values, std::string_view paper, std::string_view item);

// How a paper writes workloads: "VGG-16(256)", or "AlexNet" where it has a usual batch.
struct PaperNames {
  struct Network {
    std::string_view paper;  // the paper's name; the first name of a network is written
    std::string_view zoo;    // the zoo's name
    int64_t batch = 0;       // its usual batch; 0: the paper's usual batch
  };
  std::vector<Network> networks;  // networks that paper and zoo name differently
  int64_t batch = 0;              // the paper's usual batch; 0: it has none
  std::string_view ignored = {};  // characters that do not distinguish two names

  // Returns the paper's usual batch of a network of the zoo; 0 if there is none.
  int64_t UsualBatch(std::string_view network) const;
  // Returns the workload that the text names, in upper or lower case; nullopt if neither the paper
  // nor the zoo has the network, or if the text lacks a batch and no batch is usual.
  std::optional<Workload> Read(std::string_view text) const;
  std::string Write(const Workload& workload) const;
};

// The values for the holes of a pattern.
struct PaperRow {
  Workload workload = {};
  double number = 0;
  std::string layer = {};
  int64_t step = 0;
  std::string device = {};  // empty: no number depends on the GPU
  // The workload with the table's preset, on the device and with the kernel times of the item. Set,
  // like `device`, only in the row of a `PaperKey`: a table's own rows are for any device.
  Case asked = {};
};

// Returns a row for each workload, number and layer, the last of these changing fastest.
std::vector<PaperRow> Rows(const std::vector<Workload>& workloads,
                           const std::vector<double>& numbers = {0},
                           const std::vector<std::string>& layers = {""});

struct PaperColumn {
  std::string pattern;  // "Tab5 {workload} conv(m) aggregate"
  std::string unit;
  // Returns nullopt if the workload does not fit on the GPU or lacks the layer.
  std::function<Computed(const PaperRow&)> compute;
  bool round_down = false;    // the paper cuts the number off; otherwise it rounds
  std::string evidence = {};  // if no number is printed; "x" if the paper leaves a choice
  std::function<bool(const PaperRow&)> accepts = {};  // whether a user may ask; empty: always
};

// Returns a column's function that calls `function(inputs, arguments...)` with the row's inputs. In
// a column for modes (`ModeColumn`), it calls `function(inputs, mode, arguments...)`.
template <typename Function, typename... Arguments>
auto OfInputs(Function function, Arguments... arguments) {
  return [=](const PaperRow& row, const auto&... mode) {
    return function(Inputs(row.asked), mode..., arguments...);
  };
}
// Returns a column's function that calls `function(row, arguments...)`.
template <typename Function, typename... Arguments>
auto OfRow(Function function, Arguments... arguments) {
  return [=](const PaperRow& row) { return function(row, arguments...); };
}

// A column for each mode of a paper's policies, whose name fills {mode}.
template <typename Mode>
struct ModeColumn {
  std::string pattern;  // "Fig11 {workload} {mode} max MB"
  std::string unit;
  std::function<Computed(const PaperRow&, const Mode&)> compute;
  bool round_down = false;
};

// Returns the columns of each mode, mode by mode.
template <typename Mode>
std::vector<PaperColumn> ForModes(std::span<const Mode> modes,
                                  const std::vector<ModeColumn<Mode>>& columns) {
  constexpr std::string_view kHole = "{mode}";
  std::vector<PaperColumn> all;
  for (const Mode& mode : modes) {
    for (const ModeColumn<Mode>& column : columns) {
      std::string pattern = column.pattern;
      pattern.replace(pattern.find(kHole), kHole.size(), mode.Name());
      all.push_back({pattern, column.unit, OfRow(column.compute, mode), column.round_down});
    }
  }
  return all;
}

// The names by which a user may ask for a table.
enum class PaperRequest : uint8_t {
  kName,       // "Tab2" and "superneurons-Tab2"
  kPaperName,  // "vdnnpp-Tab2" alone, since "Tab2" means another paper's table
};

struct PaperTable {
  std::string name;  // "Tab2"; empty: a user asks for its items or for the whole paper
  PaperNames names;
  std::vector<PaperRow> rows;  // a single row if patterns have no holes
  std::vector<PaperColumn> columns;
  PaperRequest request = PaperRequest::kName;
  std::string group = {};   // another name, which several tables of the paper share
  std::string device = {};  // the paper's GPU; empty: no number depends on the GPU
  std::string preset = {};  // the preset that counts memory; empty: nothing is run
};

// The key of an item: a paper, one of its tables, a column of the table, and a row.
struct PaperKey {
  std::string_view paper;
  std::shared_ptr<const PaperTable> table;
  const PaperColumn* column;  // a column of `table`
  PaperRow row;

  // Returns the item's name in paper-values.csv, "Tab5 AlexNet(256) conv(m) aggregate".
  std::string Format() const;
  // Returns false on another GPU or with other kernel times, about which the paper prints nothing.
  bool OnPapersGpu() const;
  Computed Compute() const { return column->compute(row); }
};

// Returns the workspace of an op's fastest kernels, which is the largest of its slots.
Bytes WorkspaceOf(const Inputs& inputs, const Op& op);

// Returns the report of the run under a built-in policy.
Report ReportOf(Draft run, const std::string& policy);
// Returns the report of a simulated iteration with these inputs under a built-in policy.
Report ReportOf(const Inputs& inputs, const std::string& policy, Bytes memory = Bytes::Unlimited(),
                const std::string& allocator = "best-fit");

// Returns the row of the column's item to which a user or paper-values.csv gives the name `item`;
// nullopt if the column has no such item.
std::optional<PaperRow> RowOf(const PaperTable& table, const PaperColumn& column,
                              std::string_view item);

struct Paper {
  std::string_view name;
  // Returns the paper's tables. Some tables depend on the printed numbers.
  std::vector<PaperTable> (*tables)(const PaperValues& printed);
};

// Returns all papers, in the order in which a request is looked up (papers.cc).
const std::vector<Paper>& Papers();

std::vector<PaperTable> VdnnTables(const PaperValues& printed);
std::vector<PaperTable> VdnnppTables(const PaperValues& printed);
std::vector<PaperTable> SuperNeuronsTables(const PaperValues& printed);
std::vector<PaperTable> UcudnnTables(const PaperValues& printed);
std::vector<PaperTable> MmcnnTables(const PaperValues& printed);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_PAPER_H_
