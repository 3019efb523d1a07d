#include "experiments/papers/reproduce.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "traces/base/csv.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::lab {
namespace {

// --- Requests -----------------------------------------------------------------------------------

// The tables of all papers, on the papers' GPUs or on another GPU, and the keys of their items.
class Shelf {
 public:
  Shelf(const PaperValues& printed, const std::optional<Case>& on) : printed_(printed), on_(on) {
    for (const Paper& paper : Papers()) {
      for (PaperTable& made : paper.tables(printed)) {
        if (on && made.device.empty()) continue;
        const auto table = std::make_shared<const PaperTable>(std::move(made));
        tables_.emplace_back(paper.name, table);
        for (const PaperRow& row : table->rows) {
          for (const PaperColumn& column : table->columns)
            Add(KeyOf(paper.name, table, column, row));
        }
      }
    }
  }

  // Returns the paper's item of that name: the item of a table's row, otherwise the item of the
  // first column whose pattern gives a row. nullopt if there is none.
  std::optional<PaperKey> Find(std::string_view paper, const std::string& name) const {
    const auto listed = index_.find({paper, name});
    if (listed != index_.end()) return keys_[listed->second];
    for (const auto& [of, table] : tables_) {
      if (of != paper) continue;
      for (const PaperColumn& column : table->columns) {
        const auto row = RowOf(*table, column, name);
        if (row) return KeyOf(paper, table, column, *row);
      }
    }
    return std::nullopt;
  }

  // Returns the items of the tables that the request names, "Tab2" or "superneurons-Tab2".
  std::vector<PaperItem> ItemsOf(std::string_view request) const {
    std::vector<PaperItem> items;
    for (const PaperKey& key : keys_) {
      if (Means(request, key)) items.push_back(ItemOf(key, key.Format()));
    }
    return items;
  }

  // Returns the tables that the request names. Tables of the same name make one sheet.
  std::vector<PaperSheet> SheetsOf(std::string_view request) const {
    std::vector<PaperSheet> sheets;
    for (const PaperKey& key : keys_) {
      const bool all = request == "all" || request == key.paper;
      if (key.table->name.empty() || (!all && !Means(request, key))) continue;
      const std::string name = FullName(key, key.table->name);
      auto sheet = std::ranges::find(sheets, name, &PaperSheet::name);
      if (sheet == sheets.end()) sheet = sheets.insert(sheet, {name, {}});
      sheet->items.push_back(ItemOf(key, key.Format()));
    }
    return sheets;
  }

  // Returns the item with its printed number, if the list has one for that name and GPU.
  PaperItem ItemOf(const PaperKey& key, const std::string& name) const {
    const PaperValue* listed = key.OnPapersGpu() ? FindValue(printed_, key.paper, name) : nullptr;
    if (listed) return {*listed, key};
    const PaperColumn& column = *key.column;
    return {{std::string(key.paper), name, key.row.workload.Name(), column.unit, std::nullopt, 0,
             column.evidence},
            key};
  }

  // Returns the message for a request that names no item or table, with the names that exist.
  std::string Unknown(const std::string& kind, const std::string& request) const {
    std::vector<std::string> names{"all"};
    for (const Paper& paper : Papers()) names.emplace_back(paper.name);
    for (const PaperSheet& sheet : SheetsOf("all")) names.push_back(sheet.name);
    return UnknownName(kind, request, names);
  }

 private:
  static bool Means(std::string_view request, const PaperKey& key) {
    const PaperTable& table = *key.table;
    if (table.name.empty()) return false;
    return (table.request == PaperRequest::kName && request == table.name) ||
           request == FullName(key, table.name) ||
           (!table.group.empty() && request == FullName(key, table.group));
  }

  static std::string FullName(const PaperKey& key, std::string_view table) {
    return fmt::format("{}-{}", key.paper, table);
  }

  PaperKey KeyOf(std::string_view paper, const std::shared_ptr<const PaperTable>& table,
                 const PaperColumn& column, PaperRow row) const {
    // The name of an item may have said the device.
    if (row.device.empty()) row.device = on_ ? on_->device : table->device;
    row.asked.workload = row.workload.Name();
    row.asked.preset = table->preset;
    if (!row.device.empty()) row.asked.device = row.device;
    row.asked.cost = on_ ? on_->cost : "roofline";
    return {paper, table, &column, std::move(row)};
  }

  // On another GPU, tables that differ only in the GPU have the same items: the first is kept.
  void Add(const PaperKey& key) {
    const bool added = index_.emplace(std::pair(key.paper, key.Format()), keys_.size()).second;
    if (added) keys_.push_back(key);
  }

  const PaperValues& printed_;
  const std::optional<Case> on_;
  std::vector<std::pair<std::string_view, std::shared_ptr<const PaperTable>>> tables_;
  std::vector<PaperKey> keys_;  // the keys of all rows of `tables_`
  std::map<std::pair<std::string_view, std::string>, size_t> index_;  // paper and name
};

UsageError NotOfDevice(const std::string& request) {
  return UsageError(fmt::format("{}: no number of that depends on the device", request));
}

// --- Judging -------------------------------------------------------------------------------------

double RoundTo(double value, int decimals, bool down) {
  const double scale = std::pow(10.0, decimals);
  // The small addend keeps a number that is exact in decimal from falling under its own digits.
  return (down ? std::floor(value * scale + 1e-9) : std::round(value * scale)) / scale;
}

void Judge(Reproduction& result) {
  const Computed printed = result.item.value.printed;
  if (!printed || !result.ours) return;
  if (*printed != 0) result.rel_error = (*result.ours - *printed) / *printed;
  const std::string& evidence = result.item.value.evidence;
  result.judged = evidence == "=" || evidence == "c" || evidence == "~";
  if (!result.judged) return;
  const double tolerance = evidence == "=" ? 1e-12 : evidence == "c" ? 0.01 : 0.02;
  result.passes = std::abs(result.rel_error.value_or(*result.ours)) <= tolerance;
}

std::string CommandOf(const PaperItem& item) {
  std::string command = fmt::format("spillway reproduce '{}'", item.value.item);
  if (item.key && !item.key->OnPapersGpu()) {
    const PaperRow& row = item.key->row;
    command += fmt::format(" --device {} --cost {}", row.device, row.asked.cost.text());
  }
  return command;
}

}  // namespace

PaperValues ReadPaperValues(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  PaperValues values;
  ForEachCsvLine(text, path.string(), [&](size_t line_number, const auto& fields) {
    if (line_number == 1) return;  // header
    if (fields.size() != 6) {
      throw InputError(
          fmt::format("{}:{}: {} fields, expected 6", path.string(), line_number, fields.size()));
    }
    const std::string& printed = fields[4];
    const Computed number = ReadNumber(printed);
    if (!number && !printed.empty()) {
      throw InputError(
          fmt::format("{}:{}: '{}' is not a number", path.string(), line_number, printed));
    }
    const size_t point = std::min(printed.find('.') + 1, printed.size());
    values.push_back({fields[0], fields[1], fields[2], fields[3], number,
                      point > 0 ? static_cast<int>(printed.size() - point) : 0, fields[5]});
  });
  return values;
}

std::vector<PaperItem> SelectItems(const PaperValues& printed, const std::string& request,
                                   const std::optional<Case>& on) {
  const Shelf shelf(printed, on);
  std::vector<PaperItem> items;
  for (const PaperValue& value : printed) {
    if (request != "all" && request != value.paper && request != value.item) continue;
    if (const auto key = shelf.Find(value.paper, value.item)) {
      items.push_back(shelf.ItemOf(*key, value.item));
    } else if (!on) {
      items.push_back({value});
    }
  }
  if (items.empty()) items = shelf.ItemsOf(request);
  if (!items.empty()) return items;
  for (const Paper& paper : Papers()) {
    const auto key = shelf.Find(paper.name, request);
    if (key) items.push_back(shelf.ItemOf(*key, request));
  }
  if (!items.empty()) return items;
  if (on) SelectItems(printed, request);  // throws if no GPU has such an item
  if (on) throw NotOfDevice(request);
  throw UsageError(shelf.Unknown("item", request) +
                   "; also an item name such as 'base VGG-16(256) GB', for any network and batch");
}

std::vector<PaperSheet> SelectSheets(const PaperValues& printed, const std::string& request,
                                     const std::optional<Case>& on) {
  const Shelf shelf(printed, on);
  std::vector<PaperSheet> sheets = shelf.SheetsOf(request);
  if (!sheets.empty()) return sheets;
  if (on) SelectSheets(printed, request);
  if (on) throw NotOfDevice(request);
  throw UsageError(shelf.Unknown("table or figure", request));
}

Reproduction Reproduce(const PaperItem& item) {
  Reproduction result;
  result.item = item;
  if (item.key) result.ours = result.ours_exact = item.key->Compute();
  if (result.ours && item.value.printed) {
    result.ours = RoundTo(*result.ours, item.value.decimals, item.key->column->round_down);
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
  const auto row = [](const R& r) { return r.item.key ? r.item.key->row : PaperRow(); };
  return {
      {"paper", "", "the paper", [](auto& r) { return r.item.value.paper; }},
      {"item", "", "the name of the number", [](auto& r) { return r.item.value.item; }},
      {"workload", "", "network and batch", [](auto& r) { return r.item.value.workload; }},
      {"printed", "", "the number in the paper", [](auto& r) { return r.item.value.printed; }},
      {"ours", "", "our number, rounded as the paper rounds", &R::ours},
      {"rel_error", "1", "(ours - printed) / printed", &R::rel_error},
      {"unit", "", "the unit of printed and ours", [](auto& r) { return r.item.value.unit; }},
      {"evidence", "", "the strength of the evidence for the printed number",
       [](auto& r) { return IfAny(r.item.value.evidence); }},
      {"ours_exact", "", "our number before rounding", &R::ours_exact},
      {"judged", "", "true if the number has to agree", &R::judged},
      {"passes", "", "true if it agrees", [](auto& r) { return When(r.judged, r.passes); }},
      {"device", "", "the GPU, if the number depends on it",
       [=](auto& r) { return IfAny(row(r).device); }},
      {"cost", "", "the source of its kernels' times",
       [=](auto& r) { return When(!row(r).device.empty(), row(r).asked.cost.text()); }},
      {"preset", "", "the preset that counts memory",
       [](auto& r) { return IfAny(r.item.key ? r.item.key->table->preset : ""); }},
      {"command", "", "the command that computes the item alone",
       [](auto& r) { return CommandOf(r.item); }},
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
    constexpr double kFar = 0.25;
    if (result.ours && !result.judged && std::abs(result.rel_error.value_or(0)) > kFar)
      ++total->far;
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
      {"evidence", "", "the strength of the evidence for the printed numbers",
       [](auto& total) { return IfAny(total.evidence); }},
      {"agree", "1", "items that have to agree and do", &PaperTotal::agree},
      {"miss", "1", "items that have to agree and do not", &PaperTotal::miss},
      {"shown", "1", "items that are not judged", &PaperTotal::shown},
      {"far", "1", "of the items that are not judged, those that are off by more than 25 %",
       &PaperTotal::far},
      {"not_computed", "1", "items that this version does not compute", &PaperTotal::not_computed},
  };
}

}  // namespace spillway::lab
