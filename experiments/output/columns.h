// Writes results as rows of columns.
//
// Each kind of result has one table of columns. The table gives the name of each column, its
// meaning, and a function that gets its value from an item. CSV, JSON, tables for people and the
// list of columns are made from that table.
//
// The names of the columns are part of the program's interface: a flag, its TOML key and its column
// have the same name. JSON has a schema version; CSV follows RFC 4180.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_

#include <algorithm>
#include <compare>
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

namespace spillway::lab {

// A JSON value on one line, which only JSON documents show. CSV leaves its column out.
struct Nested {
  std::string json;
  auto operator<=>(const Nested&) const = default;
};

// One value of a row. An absent value (`std::monostate`) is an empty field in CSV, null in JSON and
// a dash in tables.
using Value = std::variant<std::monostate, int64_t, double, bool, std::string, Nested>;

// Converts a value. Durations become milliseconds, sizes become bytes.
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

// Returns the value if `known` is true; otherwise nullopt.
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

// Returns the JSON type of the values of a column: "integer", "number or null".
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

// One column of a table whose items are of type T.
template <typename T>
struct Column {
  // `get_from(item)` returns a number, bool, text, `Bytes`, `Duration` or `Nested`, or a
  // `std::optional` with one of them.
  template <typename Get>
  Column(std::string name_of, std::string_view unit_of, std::string_view help_on, Get get_from,
         std::string_view header_of = {})
      : name(std::move(name_of)),
        unit(unit_of),
        help(help_on),
        type(TypeOf(std::type_identity<std::decay_t<std::invoke_result_t<Get, const T&>>>())),
        get([get_from](const T& item) { return ToValue(std::invoke(get_from, item)); }),
        header(header_of) {}

  bool IsIn(const T& item) const { return !present || present(item); }

  std::string name;
  std::string_view unit;  // "ms", "B"; "1" for ratios and counts; empty unless values are numbers
  std::string_view help;
  std::string type;
  std::function<Value(const T&)> get;
  std::string_view header;                     // header in tables for people
  std::function<bool(const T&)> present = {};  // empty: every row has the column
};

// The columns of all values of a `T`.
template <typename T>
using Columns = std::vector<Column<T>>;

template <typename T>
using Items = std::type_identity_t<std::span<const T>>;

void PutValue(JsonWriter& json, const Value& value);
void AppendCsv(std::string& line, const Value& value);
// Returns the number with four significant digits, but all digits before the point and at most
// `decimals` behind it.
std::string FourDigits(double number, int decimals = 4);
// Returns the text of a table's cell. Numbers have four significant digits, but counts have all.
// Values with the unit "B" are shown in GiB.
std::string FormatCell(const Value& value, std::string_view unit);

// Returns a table with aligned columns, whose first row is the header. Columns of numbers are
// aligned to the right. A `width` above 0 limits the table to as many characters: columns that have
// only dashes are left out, then the columns from the first that does not fit on. The first column
// takes less than half of the width: what is longer goes on in the next lines. The last line counts
// the columns that did not fit.
std::string FormatTable(std::vector<std::vector<std::string>> cells, size_t width = 0);

// Writes an item as a JSON object.
template <typename T>
void PutRow(JsonWriter& json, const Columns<T>& columns, const std::type_identity_t<T>& item) {
  json.BeginObject();
  for (const Column<T>& column : columns) {
    if (column.IsIn(item)) PutValue(json.Key(column.name), column.get(item));
  }
  json.EndObject();
}

// Writes items as a JSON array of objects.
template <typename T>
void PutRows(JsonWriter& json, const Columns<T>& columns, Items<T> items) {
  json.BeginArray();
  for (const T& item : items) PutRow(json, columns, item);
  json.EndArray();
}

// Returns the items as a value of a column in another table.
template <typename T>
Nested NestRows(const Columns<T>& columns, Items<T> items) {
  JsonWriter json(0);
  PutRows(json, columns, items);
  Nested rows{json.Take()};
  rows.json.pop_back();  // the newline
  return rows;
}

// Returns the JSON document {"schema": schema, "rows": [...]}.
template <typename T>
std::string FormatJson(const Columns<T>& columns, Items<T> items, std::string_view schema) {
  JsonWriter json(3);
  json.BeginObject().Put("schema", schema).Key("rows");
  PutRows(json, columns, items);
  return json.EndObject().Take();
}

// Returns a CSV document with a header and a line for each item, or an empty text if there are no
// items. The first item decides which columns the document has.
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

// Returns a table for people with the columns called `names`, in that order.
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
      cells[i + 1].push_back(FormatCell(column->get(items[i]), column->unit));
    }
  }
  return FormatTable(std::move(cells), width);
}

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_COLUMNS_H_
