#include "experiments/papers/reproduce.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway {
namespace {

// --- Requests -----------------------------------------------------------------------------------

struct Cell {
  std::string_view paper;
  const PaperTable* table;
  const PaperColumn* column;
  PaperRow row;
};

// The tables of all papers, on the papers' GPUs or on another machine.
class Shelf {
 public:
  Shelf(const PaperValues& printed, const std::optional<PaperMachine>& machine)
      : machine_(machine) {
    for (const Paper& paper : Papers()) {
      if (paper.tables == nullptr) continue;
      for (PaperTable& table : paper.tables(printed)) {
        if (machine && table.device.empty()) continue;
        tables_.emplace_back(paper.name, std::move(table));
      }
    }
  }

  // The cell of that name in each paper, or in the one that is wanted: that of a row that its table
  // has, else the first.
  std::vector<Cell> Find(std::string_view item, std::string_view wanted = "") const {
    std::vector<Cell> cells;
    for (const Paper& paper : Papers()) {
      if (!wanted.empty() && wanted != paper.name) continue;
      std::vector<Cell> found;
      for (const auto& [of, table] : tables_) {
        if (of != paper.name) continue;
        for (const PaperColumn& column : table.columns) {
          const auto row = RowOf(table, column, item);
          if (row) found.push_back({of, &table, &column, InPlace(table, *row)});
        }
      }
      const auto listed = [&](const Cell& cell) {
        return std::ranges::any_of(cell.table->rows, [&](const PaperRow& row) {
          return ItemName(*cell.table, *cell.column, InPlace(*cell.table, row)) == item;
        });
      };
      if (found.empty()) continue;
      const auto own = found.size() == 1 ? found.begin() : std::ranges::find_if(found, listed);
      cells.push_back(own == found.end() ? found.front() : *own);
    }
    return cells;
  }

  // The cells of the tables that a request means, as "Tab2" or "superneurons-Tab2".
  std::vector<Cell> CellsOf(std::string_view request) const {
    std::vector<Cell> cells;
    for (const auto& [paper, table] : tables_) {
      if (Means(request, paper, table)) AddCells(paper, table, cells);
    }
    return cells;
  }

  struct Sheet {
    std::string name;
    std::vector<Cell> cells;
  };

  // The tables with rows that a request means, those of one name together.
  std::vector<Sheet> SheetsOf(std::string_view request) const {
    std::vector<Sheet> sheets;
    for (const auto& [paper, table] : tables_) {
      const std::string name = FullName(paper, table.name);
      if (table.name.empty() || table.rows.empty()) continue;
      if (request != "all" && request != paper && !Means(request, paper, table)) continue;
      auto sheet = std::find_if(sheets.begin(), sheets.end(),
                                [&](const Sheet& known) { return known.name == name; });
      if (sheet == sheets.end()) sheet = sheets.insert(sheet, {name, {}});
      AddCells(paper, table, sheet->cells);
    }
    return sheets;
  }

  // The full names of the tables with rows.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [paper, table] : tables_) {
      const std::string name = FullName(paper, table.name);
      const bool known = std::find(names.begin(), names.end(), name) != names.end();
      if (!table.name.empty() && !table.rows.empty() && !known) names.push_back(name);
    }
    return names;
  }

 private:
  static bool Means(std::string_view request, std::string_view paper, const PaperTable& table) {
    if (table.name.empty()) return false;
    return (table.request == PaperRequest::kName && request == table.name) ||
           request == FullName(paper, table.name) ||
           (!table.group.empty() && request == FullName(paper, table.group));
  }

  PaperRow InPlace(const PaperTable& table, PaperRow row) const {
    PaperMachine machine = machine_.value_or(PaperMachine{table.device, kModelled});
    if (!row.machine.device.empty()) machine.device = row.machine.device;  // by the item's name
    row.machine = std::move(machine);
    return row;
  }

  // Tables that differ in the GPU alone are one on another machine.
  void AddCells(std::string_view paper, const PaperTable& table, std::vector<Cell>& cells) const {
    const std::vector<Cell> before = cells;
    const auto known = [&](const std::string& item) {
      return std::ranges::any_of(before, [&](const Cell& cell) {
        return ItemName(*cell.table, *cell.column, cell.row) == item;
      });
    };
    for (const PaperRow& listed : table.rows) {
      const PaperRow row = InPlace(table, listed);
      for (const PaperColumn& column : table.columns) {
        if (machine_ && known(ItemName(table, column, row))) continue;
        cells.push_back({paper, &table, &column, row});
      }
    }
  }

  static std::string FullName(std::string_view paper, std::string_view table) {
    return fmt::format("{}-{}", paper, table);
  }

  const std::optional<PaperMachine> machine_;
  std::vector<std::pair<std::string_view, PaperTable>> tables_;
};

// With what the list says of it, if it does. It says nothing of other machines.
PaperItem MakeItem(const PaperValues& printed, const std::string& name, const Cell& cell) {
  const PaperMachine& machine = cell.row.machine;
  const auto listed = std::find_if(printed.begin(), printed.end(), [&](const PaperValue& value) {
    return value.paper == cell.paper && value.item == name;
  });
  const PaperColumn& column = *cell.column;
  const bool elsewhere = machine.device != cell.table->device || machine.cost != kModelled;
  return {listed != printed.end() && !elsewhere
              ? *listed
              : PaperValue{std::string(cell.paper), name, cell.row.workload.Name(), column.unit, "",
                           column.evidence},
          machine,
          elsewhere,
          cell.table->preset,
          column.round_down,
          [compute = column.compute, row = cell.row] { return compute(row); }};
}

// --- Judging -------------------------------------------------------------------------------------

// Digits after the decimal point of a printed number.
int Decimals(std::string_view printed) {
  const size_t point = printed.find('.');
  return point == std::string_view::npos ? 0 : static_cast<int>(printed.size() - point - 1);
}

double RoundTo(double value, int decimals, bool down) {
  const double scale = std::pow(10.0, decimals);
  // The small addend keeps a number that is exact in decimal from falling under its own digits.
  return (down ? std::floor(value * scale + 1e-9) : std::round(value * scale)) / scale;
}

void Judge(Reproduction& result) {
  const std::optional<double> printed = ReadNumber(result.item.value.printed);
  if (!printed || !result.ours) return;
  if (*printed != 0) result.rel_error = (*result.ours - *printed) / *printed;
  const std::string& evidence = result.item.value.evidence;
  result.judged = evidence == "=" || evidence == "c" || evidence == "~";
  if (!result.judged) return;
  const double tolerance = evidence == "=" ? 1e-12 : evidence == "c" ? 0.01 : 0.02;
  result.passes = std::abs(result.rel_error.value_or(*result.ours)) <= tolerance;
}

std::string CommandOf(const PaperItem& item) {
  const PaperMachine& machine = item.machine;
  std::string command = fmt::format("spillway reproduce '{}'", item.value.item);
  if (item.elsewhere) {
    command += fmt::format(" --device {} --cost {}", machine.device, machine.cost);
  }
  return command;
}

}  // namespace

PaperValues ReadPaperValues(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  PaperValues values;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto fields = SplitCsv(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    if (line_number == 1) continue;  // header
    if (fields.size() != 6) {
      throw InputError(
          fmt::format("{}:{}: {} fields, expected 6", path.string(), line_number, fields.size()));
    }
    values.push_back({fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
  }
  return values;
}

std::vector<PaperItem> SelectItems(const PaperValues& printed, const std::string& request,
                                   const std::optional<PaperMachine>& machine) {
  const Shelf shelf(printed, machine);
  std::vector<PaperItem> items;
  std::vector<std::string> names{"all"};
  for (const Paper& paper : Papers()) names.emplace_back(paper.name);
  for (const PaperValue& value : printed) {
    if (request != "all" && request != value.paper && request != value.item) continue;
    const auto cells = shelf.Find(value.item, value.paper);
    if (!cells.empty()) {
      items.push_back(MakeItem(printed, value.item, cells[0]));
    } else if (!machine) {
      items.push_back({value});
    }
  }
  if (!items.empty()) return items;
  for (const Cell& cell : shelf.CellsOf(request)) {
    items.push_back(MakeItem(printed, ItemName(*cell.table, *cell.column, cell.row), cell));
  }
  if (!items.empty()) return items;
  for (const Cell& cell : shelf.Find(request)) items.push_back(MakeItem(printed, request, cell));
  if (!items.empty()) return items;
  if (machine) SelectItems(printed, request);  // throws if there is no such item at all
  if (machine) throw UsageError(fmt::format("{}: nothing there depends on the device", request));
  const std::vector<std::string> tables = shelf.Names();
  names.insert(names.end(), tables.begin(), tables.end());
  throw UsageError(
      fmt::format("{}; also an item name such as 'base VGG-16(256) GB', for any network and batch",
                  UnknownName("item", request, names)));
}

std::vector<PaperSheet> SelectSheets(const PaperValues& printed, const std::string& request,
                                     const std::optional<PaperMachine>& machine) {
  const Shelf shelf(printed, machine);
  std::vector<PaperSheet> sheets;
  for (const Shelf::Sheet& sheet : shelf.SheetsOf(request)) {
    PaperSheet& selected = sheets.emplace_back(PaperSheet{sheet.name, {}});
    for (const Cell& cell : sheet.cells) {
      selected.items.push_back(
          MakeItem(printed, ItemName(*cell.table, *cell.column, cell.row), cell));
    }
  }
  if (!sheets.empty()) return sheets;
  if (machine) SelectSheets(printed, request);
  if (machine) throw UsageError(fmt::format("{}: nothing there depends on the device", request));
  std::vector<std::string> names{"all"};
  for (const Paper& paper : Papers()) names.emplace_back(paper.name);
  const std::vector<std::string> tables = shelf.Names();
  names.insert(names.end(), tables.begin(), tables.end());
  throw UsageError(UnknownName("table or figure", request, names));
}

Reproduction Reproduce(const PaperItem& item) {
  Reproduction result;
  result.item = item;
  if (item.compute) result.ours = result.ours_exact = item.compute();
  const std::string& printed = item.value.printed;
  if (result.ours && !printed.empty()) {
    result.ours = RoundTo(*result.ours, Decimals(printed), item.round_down);
  }
  Judge(result);
  return result;
}

std::vector<Reproduction> Reproduce(const std::vector<PaperItem>& items,
                                    const std::function<void(const PaperItem&)>& done) {
  std::vector<Reproduction> results(items.size());
  tbb::parallel_for(size_t{0}, items.size(), [&](size_t i) {
    results[i] = Reproduce(items[i]);
    done(items[i]);
  });
  return results;
}

Columns<Reproduction> ReproductionColumns() {
  using R = Reproduction;
  return {
      {"paper", "", "the paper", [](auto& r) { return r.item.value.paper; }},
      {"item", "", "what it prints", [](auto& r) { return r.item.value.item; }},
      {"workload", "", "of what", [](auto& r) { return r.item.value.workload; }},
      {"printed", "", "in the paper", [](auto& r) { return ReadNumber(r.item.value.printed); }},
      {"ours", "", "rounded as the paper does", &R::ours},
      {"rel_error", "1", "(ours - printed) / printed", &R::rel_error},
      {"unit", "", "of both", [](auto& r) { return r.item.value.unit; }},
      {"evidence", "", "how the printed number is known",
       [](auto& r) { return IfAny(r.item.value.evidence); }},
      {"ours_exact", "", "before rounding", &R::ours_exact},
      {"judged", "", "whether the number has to agree", &R::judged},
      {"passes", "", "whether it does", [](auto& r) { return When(r.judged, r.passes); }},
      {"device", "", "on the model of which GPU, where that matters",
       [](auto& r) { return IfAny(r.item.machine.device); }},
      {"cost", "", "where the times of its kernels come from",
       [](auto& r) { return When(!r.item.machine.device.empty(), r.item.machine.cost); }},
      {"preset", "", "how memory is counted", [](auto& r) { return IfAny(r.item.preset); }},
      {"command", "", "what computes it alone", [](auto& r) { return CommandOf(r.item); }},
  };
}

std::vector<PaperTotal> TotalsOf(const std::vector<Reproduction>& results) {
  std::vector<PaperTotal> totals;
  for (const Reproduction& result : results) {
    const PaperValue& value = result.item.value;
    auto total = std::find_if(totals.begin(), totals.end(), [&](const PaperTotal& known) {
      return known.paper == value.paper && known.evidence == value.evidence;
    });
    if (total == totals.end()) total = totals.insert(total, {value.paper, value.evidence});
    ++(!result.ours     ? total->not_computed
       : !result.judged ? total->shown
       : !result.passes ? total->miss
                        : total->agree);
  }
  return totals;
}

Columns<PaperTotal> TotalColumns() {
  return {
      {"paper", "", "the paper", &PaperTotal::paper},
      {"evidence", "", "how the printed numbers are known",
       [](auto& total) { return IfAny(total.evidence); }},
      {"agree", "1", "items that have to and do", &PaperTotal::agree},
      {"miss", "1", "items that have to and do not", &PaperTotal::miss},
      {"shown", "1", "items that are not judged", &PaperTotal::shown},
      {"not_computed", "1", "items that this version does not compute", &PaperTotal::not_computed},
  };
}

}  // namespace spillway
