// Results as rows of columns. One table per kind of result says of each column what it is called,
// what it means and how to get it from an item; rows in CSV, JSON and tables for people, and the
// list of columns, are made from that table.
//
// The names of the columns are part of the program's interface: flag, TOML key and column share one
// name each. JSON carries a schema version; CSV follows RFC 4180.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_

#include <algorithm>
#include <concepts>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "traces/base/error.h"
#include "traces/base/json_writer.h"
#include "traces/base/units.h"

namespace spillway {

enum class Format : uint8_t { kTable, kCsv, kJson };

// A value that only documents have, on one line: CSV and tables leave its column out.
struct Nested {
  std::string json;
  bool operator==(const Nested&) const = default;
};

// One value of a row. Absent ones print as an empty CSV field, null in JSON and a dash in tables.
using Value = std::variant<std::monostate, int64_t, double, bool, std::string, Nested>;

// Durations are milliseconds.
template <typename T>
Value ToValue(const T& value) {
  if constexpr (std::same_as<T, Bytes>) {
    return value.count();
  } else if constexpr (std::same_as<T, Duration>) {
    return value.milliseconds();
  } else if constexpr (std::same_as<T, bool> || std::same_as<T, Nested>) {
    return value;
  } else if constexpr (std::integral<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::floating_point<T>) {
    return double{value};
  } else {
    return std::string(value);
  }
}
template <typename T>
Value ToValue(const std::optional<T>& value) {
  return value ? ToValue(*value) : Value();
}

// Values that only some items have.
template <typename T>
std::optional<T> When(bool known, const T& value) {
  return known ? std::optional<T>(value) : std::nullopt;
}
inline std::optional<std::string> IfAny(const std::string& text) {
  return When(!text.empty(), text);
}
inline std::optional<Bytes> IfLimited(Bytes memory) {
  return When(memory != Bytes::Unlimited(), memory);
}

// The JSON type of such values: "integer", "number or null".
template <typename T>
std::string TypeOf(std::type_identity<T>) {
  if constexpr (std::convertible_to<T, std::string_view>) {
    return "string";
  } else {
    constexpr const char* kNames[] = {"", "integer", "number", "boolean", "", "array"};
    return kNames[ToValue(T()).index()];
  }
}
template <typename T>
std::string TypeOf(std::type_identity<std::optional<T>>) {
  return TypeOf(std::type_identity<T>()) + " or null";
}

template <typename T>
struct Column {
  // `get_from(item)` is a number, truth, text, `Bytes`, `Duration` or `Nested`, or an optional one.
  template <typename Get>
  Column(std::string name_of, std::string_view unit_of, std::string_view help_on, Get get_from,
         std::string_view header_of = {}, int digits_of = 0)
      : name(std::move(name_of)),
        unit(unit_of),
        help(help_on),
        type(TypeOf(std::type_identity<std::decay_t<std::invoke_result_t<Get, const T&>>>())),
        get([get_from](const T& item) { return ToValue(std::invoke(get_from, item)); }),
        header(header_of),
        digits(digits_of) {}

  bool IsIn(const T& item) const { return !present || present(item); }

  std::string name;
  std::string_view unit;  // "ms", "B"; "1" for ratios and counts; empty for what is no number
  std::string_view help;
  std::string type;
  std::function<Value(const T&)> get;
  std::string_view header;                     // in a table for people
  int digits;                                  // there, of numbers, behind the point
  std::function<bool(const T&)> present = {};  // empty: in all rows
};

// The table of the columns of a `T`.
template <typename T>
using Columns = std::vector<Column<T>>;

template <typename T>
using Items = std::type_identity_t<std::span<const T>>;

void PutValue(JsonWriter& json, const Value& value);
void AppendCsv(std::string& line, const Value& value);
// The cell of a table: a number of bytes in GiB.
std::string FormatCell(const Value& value, std::string_view unit, int digits);

// Cells in aligned columns; the first row is the header. Numbers are aligned to the right. With a
// width, columns of dashes alone are left out, then those to the right that do not fit, and a last
// line says how many.
std::string FormatTable(std::vector<std::vector<std::string>> cells, size_t width = 0);

// The item as one object.
template <typename T>
void PutRow(JsonWriter& json, const Columns<T>& columns, const std::type_identity_t<T>& item) {
  json.BeginObject();
  for (const Column<T>& column : columns) {
    if (column.IsIn(item)) PutValue(json.Key(column.name), column.get(item));
  }
  json.EndObject();
}

// An array of them.
template <typename T>
void PutRows(JsonWriter& json, const Columns<T>& columns, Items<T> items) {
  json.BeginArray();
  for (const T& item : items) PutRow(json, columns, item);
  json.EndArray();
}

template <typename T>
Nested NestRows(const Columns<T>& columns, Items<T> items) {
  JsonWriter json(0);
  PutRows(json, columns, items);
  Nested rows{json.Take()};
  rows.json.pop_back();  // the newline
  return rows;
}

// {"schema": schema, "rows": [...]}
template <typename T>
std::string FormatJson(const Columns<T>& columns, Items<T> items, std::string_view schema) {
  JsonWriter json(3);
  json.BeginObject().Put("schema", schema).Key("rows");
  PutRows(json, columns, items);
  return json.EndObject().Take();
}

// A header and a line for each item; nothing where there are none. The first says which columns
// there are.
template <typename T>
std::string FormatCsv(const Columns<T>& columns, Items<T> items) {
  std::string text;
  const auto add_line = [&](const auto& value_of) {
    bool first = true;
    for (const Column<T>& column : columns) {
      if (column.type == "array" || !column.IsIn(items.front())) continue;
      if (!std::exchange(first, false)) text += ',';
      AppendCsv(text, value_of(column));
    }
    text += "\r\n";
  };
  if (items.empty()) return text;
  add_line([](const Column<T>& column) { return Value(column.name); });
  for (const T& item : items) {
    add_line([&](const Column<T>& column) { return column.get(item); });
  }
  return text;
}

// For people: the columns named, in that order.
template <typename T>
std::string FormatTable(const Columns<T>& columns, std::span<const std::string_view> names,
                        Items<T> items, size_t width = 0) {
  std::vector<std::vector<std::string>> cells(items.size() + 1);
  for (const std::string_view name : names) {
    const auto column = std::find_if(columns.begin(), columns.end(),
                                     [&](const Column<T>& c) { return c.name == name; });
    SPILLWAY_CHECK(column != columns.end());
    cells[0].emplace_back(column->header);
    for (size_t i = 0; i < items.size(); ++i) {
      cells[i + 1].push_back(FormatCell(column->get(items[i]), column->unit, column->digits));
    }
  }
  return FormatTable(std::move(cells), width);
}

// The items in the format asked for; `table()` is the text for people.
template <typename T, typename Table>
std::string FormatAs(Format format, const Columns<T>& columns, Items<T> items,
                     std::string_view schema, const Table& table) {
  if (format == Format::kCsv) return FormatCsv(columns, items);
  if (format == Format::kJson) return FormatJson(columns, items, schema);
  return table();
}

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_
