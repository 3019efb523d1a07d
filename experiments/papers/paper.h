// A paper as tables whose cells this program computes.
//
// The items of a table are its rows times its columns. A column's pattern names them; rows fill its
// holes: {workload}, a network and its batch as the paper writes them; {batch}, a batch alone;
// {number}; {step}, a count; {layer}, a word; {device}, the GPU. The same pattern tells what is
// asked for by a name that no row has: the same of another workload, number or layer. What the
// paper prints stands in paper-values.csv. A table has a GPU, that of the paper, and can be
// computed for another one.

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

#include "traces/zoo/zoo.h"

namespace spillway {

using Computed = std::optional<double>;

// A printed number. `evidence`: "=" must agree to the printed digits, "c" within 1 %, "~" within 2
// %; "f" (a fit) and "x" (not explained) are shown and not judged.
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

// All of the text as a number; nullopt if it is none.
Computed ReadNumber(std::string_view text);

// nullptr if the list does not have the item.
const PaperValue* FindValue(const PaperValues& values, std::string_view paper,
                            std::string_view item);

// nullopt if the paper does not print the item.
Computed PrintedNumber(const PaperValues& values, std::string_view paper, std::string_view item);

// How a paper writes workloads: "VGG-16(256)", or "AlexNet" where it has a usual batch.
struct PaperNames {
  struct Network {
    std::string_view paper;  // the first of several is written
    std::string_view zoo;
    int64_t batch = 0;  // its usual one, if it differs
  };
  std::vector<Network> networks;  // that the zoo calls otherwise or whose case differs
  int64_t batch = 0;              // the usual one; 0: there is none
  std::string_view ignored = {};  // characters of a network's name that make no difference

  // The paper's usual batch of a network of the zoo.
  int64_t UsualBatch(std::string_view network) const;
  // nullopt if the text, in any case, is no workload of the paper's or the zoo's networks.
  std::optional<Workload> Read(std::string_view text) const;
  std::string Write(const Workload& workload) const;
};

// A GPU, and where the times of its kernels come from: as for `LoadDevice` and `LoadCost`, but that
// "auto" takes no recorded table that lacks a kernel.
struct PaperMachine {
  std::string device = {};
  std::string cost = {};
};
inline constexpr const char* kModelled = "roofline";  // the cost on a paper's own GPU

// What fills the holes of a pattern, and where it is computed.
struct PaperRow {
  Workload workload = {};
  double number = 0;
  std::string layer = {};
  PaperMachine machine = {};  // in a table's rows: none, the table's
  int64_t step = 0;
};

// Each workload with each number and layer.
std::vector<PaperRow> Rows(const std::vector<Workload>& workloads,
                           const std::vector<double>& numbers = {0},
                           const std::vector<std::string>& layers = {""});

struct PaperColumn {
  std::string pattern;  // "Tab5 {workload} conv(m) aggregate"
  std::string unit;
  // nullopt where the workload does not fit on the paper's GPU, or does not have the layer.
  std::function<Computed(const PaperRow&)> compute;
  bool round_down = false;    // as the paper prints it; else rounded
  std::string evidence = {};  // of what is not printed: "x" where it rests on what is not said
  std::function<bool(const PaperRow&)> accepts = {};  // rows besides the table's; empty: all
};

// What a column computes from the row's workload alone: `function(workload, arguments...)`.
template <typename Function, typename... Arguments>
auto OfWorkload(Function function, Arguments... arguments) {
  return [=](const PaperRow& row) { return function(row.workload, arguments...); };
}
// Likewise with its machine: `function(row, arguments...)`.
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

// All columns of the first mode, then those of the next.
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

// How a table is asked for.
enum class PaperRequest : uint8_t {
  kName,       // "Tab2", or "superneurons-Tab2"
  kPaperName,  // not by "Tab2", which means another paper's
};

struct PaperTable {
  std::string name;  // "Tab2"; empty: its items are asked for one by one, and with their paper
  PaperNames names;
  std::vector<PaperRow> rows;  // one where patterns have no holes
  std::vector<PaperColumn> columns;
  PaperRequest request = PaperRequest::kName;
  std::string group = {};   // a name of several tables of the paper
  std::string device = {};  // its GPU; empty: nothing depends on that
  std::string preset = {};  // how memory is counted; empty: there is no run
};

// Identifies an item: a column of a table of a paper, and a row. The machine is part of it.
struct PaperKey {
  std::string_view paper;
  std::shared_ptr<const PaperTable> table;
  const PaperColumn* column;  // of the table
  PaperRow row;

  // As users and paper-values.csv name it: "Tab5 AlexNet(256) conv(m) aggregate".
  std::string Format() const;
  // False: nothing is printed of it.
  bool OnPapersGpu() const;
  Computed Compute() const { return column->compute(row); }
};

// The row for which the column has an item that a user or paper-values.csv names so; nullopt if
// there is none.
std::optional<PaperRow> RowOf(const PaperTable& table, const PaperColumn& column,
                              std::string_view item);

struct Paper {
  std::string_view name;
  // What the paper prints may say which tables there are.
  std::vector<PaperTable> (*tables)(const PaperValues& printed);
};

// All papers, in the order in which they are asked: papers.cc.
const std::vector<Paper>& Papers();

std::vector<PaperTable> VdnnTables(const PaperValues& printed);
std::vector<PaperTable> VdnnppTables(const PaperValues& printed);
std::vector<PaperTable> SuperNeuronsTables(const PaperValues& printed);
std::vector<PaperTable> UcudnnTables(const PaperValues& printed);
std::vector<PaperTable> MmcnnTables(const PaperValues& printed);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_PAPER_H_
