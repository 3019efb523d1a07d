#include "experiments/output/value_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// The columns that say which case a row is of. A column stands before the columns that follow from
// it.
constexpr std::array<std::string_view, 11> kSettings{"paper",  "workload",  "network", "batch",
                                                     "device", "memory",    "preset",  "mode",
                                                     "change", "allocator", "backend"};
// The settings that a caption gives if all rows agree.
constexpr std::span kInCaptions = std::span(kSettings).first<8>();

// Returns the number with four significant digits, and all digits before the point if they are few.
std::string Significant(double number) {
  const double size = std::abs(number);
  const bool scientific = size != 0 && !(size >= 1e-4 && size < 1e15);
  constexpr int kMostDecimals = 7;  // 0.0001234
  return scientific ? fmt::format("{:.3e}", number) : FourDigits(number, kMostDecimals);
}

// Returns "12 GiB" for "12GiB", and any other text as it is.
std::string Spaced(std::string text) {
  const size_t unit = text.find_first_not_of("0123456789.");
  if (unit != 0 && unit != text.npos && text.ends_with('B') && text[unit] != ' ') {
    text.insert(unit, " ");
  }
  return text;
}

std::vector<size_t> DefaultColumns(const ValueTable& table) {
  std::vector<size_t> chosen;
  for (const size_t setting : table.Settings()) {
    // No device follows from a workload: the largest one that fits may differ between devices.
    const bool stands_alone = table.columns[setting].name == "device";
    if (!table.Determines(stands_alone ? std::vector<size_t>() : chosen, setting)) {
      chosen.push_back(setting);
    }
  }
  const bool any_usual = std::ranges::any_of(table.columns, &ValueTable::Column::usual);
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const ValueTable::Column& column = table.columns[i];
    // The column "memory" stands for these two.
    const bool is_memory = column.name == "memory_bytes" || column.name == "memory_request";
    const bool in_caption = std::ranges::count(kInCaptions, column.name) > 0;
    if (is_memory || in_caption || std::ranges::count(chosen, i) > 0) continue;
    if ((column.usual || !any_usual) && table.HasValue(i)) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

std::optional<size_t> ValueTable::Find(std::string_view name) const {
  const auto found = std::ranges::find(columns, name, &Column::name);
  if (found == columns.end()) return std::nullopt;
  return static_cast<size_t>(found - columns.begin());
}

size_t ValueTable::IndexOf(const std::string& name) const {
  for (const char* unit : {"", "_ms", "_bytes"}) {
    if (const auto index = Find(name + unit)) return *index;
  }
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  throw UsageError(UnknownName("column", name, names));
}

std::vector<size_t> ValueTable::IndicesOf(const std::vector<std::string>& names) const {
  std::vector<size_t> indices;
  for (const std::string& name : names) indices.push_back(IndexOf(name));
  return indices;
}

bool ValueTable::Determines(const std::vector<size_t>& columns_of, size_t other) const {
  std::map<std::vector<Value>, Value> seen;
  return std::ranges::all_of(rows, [&](const std::vector<Value>& row) {
    std::vector<Value> key;
    for (const size_t column : columns_of) key.push_back(row[column]);
    return seen.try_emplace(std::move(key), row[other]).first->second == row[other];
  });
}

bool ValueTable::HasValue(size_t column) const {
  return std::ranges::any_of(rows, [&](const auto& row) { return row[column] != Value(); });
}

bool ValueTable::HasNumbers(size_t column) const {
  return HasValue(column) && std::ranges::all_of(rows, [&](const auto& row) {
           const Value& value = row[column];
           return value == Value() || std::holds_alternative<int64_t>(value) ||
                  std::holds_alternative<double>(value);
         });
}

std::vector<size_t> ValueTable::Settings() const {
  std::vector<size_t> settings;
  for (const std::string_view name : kSettings) {
    if (const auto index = Find(name)) settings.push_back(*index);
  }
  return settings;
}

void AddMemory(ValueTable& table) {
  const auto bytes = table.Find("memory_bytes"), request = table.Find("memory_request");
  if (!bytes || table.Find("memory")) return;
  table.columns.push_back({"memory", "", false});
  for (std::vector<Value>& row : table.rows) {
    const auto* size = std::get_if<int64_t>(&row[*bytes]);
    const auto* text = request ? std::get_if<std::string>(&row[*request]) : nullptr;
    row.emplace_back(text != nullptr   ? Spaced(*text)
                     : size != nullptr ? FormatBytes(Bytes(*size))
                                       : std::string("unlimited"));
  }
}

std::string WordsOf(const ValueTable::Column& column) {
  std::string words = column.name;
  const std::string_view unit = column.unit == "ms" ? "_ms" : column.unit == "B" ? "_bytes" : "";
  if (words.ends_with(unit)) words.resize(words.size() - unit.size());
  std::ranges::replace(words, '_', ' ');
  return words;
}

std::string HeadOf(const ValueTable::Column& column) {
  const char* unit = column.unit == "ms" ? " (ms)" : column.unit == "B" ? " (GiB)" : "";
  return WordsOf(column) + unit;
}

std::string CellOf(const Value& value, std::string_view unit) {
  const auto* number = std::get_if<double>(&value);
  const auto* whole = std::get_if<int64_t>(&value);
  if (whole != nullptr && unit == "B") {
    return Significant(static_cast<double>(*whole) / static_cast<double>(Bytes::GiB(1).count()));
  }
  if (number == nullptr) return FormatCell(value, "");
  return unit.empty() ? fmt::format("{:.6g}", *number) : Significant(*number);
}

std::string CommonSettings(const ValueTable& table, const std::vector<size_t>& shown) {
  std::vector<std::string> parts;
  bool has_workload = false;
  for (const std::string_view name : kInCaptions) {
    const auto index = table.Find(name);
    if (!index || !table.Determines({}, *index) || !table.HasValue(*index)) continue;
    if (std::ranges::count(shown, *index) > 0) continue;
    if (has_workload && (name == "network" || name == "batch")) continue;
    has_workload = has_workload || name == "workload";
    const std::string cell = CellOf(table.rows.front()[*index], table.columns[*index].unit);
    const bool is_name = name == "paper" || name == "workload" || name == "network";
    parts.push_back(is_name ? cell : fmt::format("{} {}", name, cell));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> NotesOn(const ValueTable& table) {
  const auto memory = table.Find("memory");
  const bool any = memory && std::ranges::any_of(table.rows, [&](const std::vector<Value>& row) {
                     const auto* text = std::get_if<std::string>(&row[*memory]);
                     return text != nullptr && text->ends_with('%');
                   });
  if (!any) return {};
  return {"0% of memory is the least that a layer-wise policy needs, 100% the peak in core"};
}

TextTable ChooseColumns(const ValueTable& table, const std::vector<std::string>& names) {
  const std::vector<size_t> chosen = names.empty() ? DefaultColumns(table) : table.IndicesOf(names);
  TextTable text;
  text.title = CommonSettings(table, chosen);
  text.notes = NotesOn(table);
  text.rows.resize(table.rows.size());
  for (const size_t i : chosen) {
    const ValueTable::Column& column = table.columns[i];
    text.columns.push_back({HeadOf(column), table.HasNumbers(i)});
    for (size_t r = 0; r < table.rows.size(); ++r) {
      text.rows[r].push_back(CellOf(table.rows[r][i], column.unit));
    }
  }
  return text;
}

}  // namespace spillway::lab
