#include "experiments/output/pivot.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// A number that orders values, and the kind of values that it can be compared with.
struct Quantity {
  enum class Kind : uint8_t { kNumber, kPercentage, kSize } kind = Kind::kNumber;
  double number = 0;
};

std::optional<Quantity> QuantityOf(const Value& value) {
  using enum Quantity::Kind;
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return Quantity{kNumber, static_cast<double>(*whole)};
  }
  if (const auto* number = std::get_if<double>(&value)) return Quantity{kNumber, *number};
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return std::nullopt;
  if (text->ends_with('%')) {
    Quantity percentage{kPercentage};
    const char* const end = text->data() + text->size() - 1;
    const auto [used, error] = std::from_chars(text->data(), end, percentage.number);
    return error == std::errc() && used == end ? std::optional(percentage) : std::nullopt;
  }
  try {
    std::string size = *text;
    std::erase(size, ' ');  // "12 GiB"
    return Quantity{kSize, static_cast<double>(ParseBytes(size).count())};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Returns the different values of a column in the order of the pivot.
std::vector<Value> OrderOf(const ValueTable& table, size_t column) {
  std::vector<Value> values;
  for (const auto& row : table.rows) {
    if (std::ranges::count(values, row[column]) == 0) values.push_back(row[column]);
  }
  const auto kind_of = [](const Value& value) {
    const auto quantity = QuantityOf(value);
    return quantity ? std::optional(quantity->kind) : std::nullopt;
  };
  const auto kind = kind_of(values.front());
  const bool numeric = kind && std::ranges::all_of(values, [&](const Value& value) {
                         return kind_of(value) == kind;
                       });
  if (numeric) {
    std::ranges::stable_sort(values, {},
                             [](const Value& value) { return QuantityOf(value)->number; });
  }
  return values;
}

// Returns a value as the head of a row or column, with its unit.
std::string HeadOfValue(const Value& value, const ValueTable::Column& column) {
  const auto* size = std::get_if<int64_t>(&value);
  if (size != nullptr && column.unit == "B") return FormatBytes(Bytes(*size));
  const std::string cell = CellOf(value, column.unit);
  return column.unit == "ms" && cell != "-" ? cell + " ms" : cell;
}

std::string CellOfRow(const ValueTable& table, const std::vector<Value>& row, size_t value) {
  const auto status = table.Find("status");
  if (row[value] == Value() && status && row[*status] != Value("ok")) {
    return CellOf(row[*status], "");
  }
  return CellOf(row[value], table.columns[value].unit);
}

// Throws the error of two rows that fall into one cell. It names a column in which they differ.
[[noreturn]] void ThrowAmbiguous(const ValueTable& table, const std::vector<size_t>& keys,
                                 const std::vector<Value>& first, const std::vector<Value>& second,
                                 const Pivot& pivot) {
  std::vector<std::string> place;
  for (const size_t key : keys) {
    place.push_back(fmt::format("{} '{}'", table.columns[key].name,
                                HeadOfValue(first[key], table.columns[key])));
  }
  const std::string rows = fmt::format("--pivot: two rows have {}", fmt::join(place, " and "));
  // The columns that tell cases apart come before the columns with results.
  std::vector<size_t> columns = table.Settings();
  if (const auto policy = table.Find("policy")) columns.push_back(*policy);
  for (size_t i = 0; i < table.columns.size(); ++i) columns.push_back(i);
  const auto other = std::ranges::find_if(
      columns, [&](const size_t column) { return first[column] != second[column]; });
  if (other == columns.end()) throw UsageError(rows + " and are alike: name each case once");
  throw UsageError(fmt::format(
      "{1} and differ in '{0}': choose one '{0}', or pivot by it, too (--pivot {0},{2})",
      table.columns[*other].name, rows, fmt::join(pivot.rows, ",")));
}

// The rows of a table in the order of its pivot.
struct Placed {
  using Row = const std::vector<Value>*;
  std::vector<Value> columns;           // the values of `Pivot::by`
  std::vector<std::vector<Row>> cells;  // each line has one for each column; may be nullptr
};

// Returns the rows at their places. The last of `keys` is the column `Pivot::by`.
Placed Place(const ValueTable& table, const std::vector<size_t>& keys, const Pivot& pivot) {
  std::vector<std::map<Value, size_t>> ranks;  // by key: the ranks of its values
  Placed placed;
  for (const size_t key : keys) {
    placed.columns = OrderOf(table, key);
    ranks.emplace_back();
    for (const Value& value : placed.columns) ranks.back().emplace(value, ranks.back().size());
  }
  std::map<std::vector<size_t>, std::vector<Placed::Row>> lines;
  for (const std::vector<Value>& row : table.rows) {
    std::vector<size_t> place;
    for (size_t i = 0; i < keys.size(); ++i) place.push_back(ranks[i].at(row[keys[i]]));
    const size_t column = place.back();
    place.pop_back();
    const auto line = lines.try_emplace(std::move(place), placed.columns.size(), nullptr).first;
    Placed::Row& cell = line->second[column];
    if (cell != nullptr) ThrowAmbiguous(table, keys, *cell, row, pivot);
    cell = &row;
  }
  for (auto& [place, line] : lines) placed.cells.push_back(std::move(line));
  return placed;
}

}  // namespace

void CheckPivot(const ValueTable& table, const Pivot& pivot) {
  std::set<size_t> seen;
  std::vector<std::string> names = pivot.rows;
  names.insert(names.end(), {pivot.by, pivot.value});
  for (const std::string& name : names) {
    if (seen.insert(table.IndexOf(name)).second) continue;
    throw UsageError(fmt::format(
        "--pivot, --by and --value: '{}' is named twice, they need different columns", name));
  }
}

TextTable FormatPivot(const ValueTable& table, const Pivot& pivot) {
  CheckPivot(table, pivot);
  std::vector<size_t> keys = table.IndicesOf(pivot.rows);
  const size_t by = table.IndexOf(pivot.by), value = table.IndexOf(pivot.value);
  keys.push_back(by);
  const Placed placed = Place(table, keys, pivot);
  keys.pop_back();

  TextTable text;
  std::vector<std::string> heads;
  for (const size_t key : keys) {
    heads.push_back(WordsOf(table.columns[key]));
    text.columns.push_back({heads.back(), false});
  }
  text.keys = keys.size();
  text.group = WordsOf(table.columns[by]);
  for (const Value& head : placed.columns) {
    text.columns.push_back({HeadOfValue(head, table.columns[by]), table.HasNumbers(value)});
  }
  for (const std::vector<Placed::Row>& line : placed.cells) {
    std::vector<std::string>& row = text.rows.emplace_back();
    const Placed::Row any = *std::ranges::find_if(line, [](Placed::Row cell) { return cell; });
    for (const size_t key : keys) row.push_back(HeadOfValue((*any)[key], table.columns[key]));
    for (const Placed::Row cell : line) {
      row.push_back(cell == nullptr ? std::string() : CellOfRow(table, *cell, value));
    }
  }

  std::vector<size_t> shown = keys;
  shown.insert(shown.end(), {by, value});
  const std::string common = CommonSettings(table, shown);
  text.title =
      fmt::format("{} by {} and {}{}{}", Capitalized(HeadOf(table.columns[value])),
                  fmt::join(heads, " and "), text.group, common.empty() ? "" : ": ", common);
  text.notes = NotesOn(table);
  const bool oom = std::ranges::any_of(
      text.rows, [](const auto& row) { return std::ranges::count(row, "oom") > 0; });
  if (oom) text.notes.emplace_back("oom: out of memory");
  return text;
}

}  // namespace spillway::lab
