// The values of a table of results, from which people choose columns.
//
// A table of results has one column more than its rows have as CSV: "memory" is the text of
// --memory, or the size of the memory if the row has no such text.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_VALUE_TABLE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_VALUE_TABLE_H_

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/text_table.h"

namespace spillway::lab {

struct ValueTable {
  struct Column {
    std::string name;
    std::string unit;    // as in `Column`
    bool usual = false;  // true if people read it unless they choose columns
  };

  std::vector<Column> columns;
  std::vector<std::vector<Value>> rows;  // each has a value for each column

  // Returns the index of the column, which may be named without its unit ("iteration"). Throws
  // `UsageError` if there is none.
  size_t IndexOf(const std::string& name) const;
  std::vector<size_t> IndicesOf(const std::vector<std::string>& names) const;
  // Returns the index of the column of exactly that name, or nullopt.
  std::optional<size_t> Find(std::string_view name) const;

  // Returns true iff rows with the same values in `columns` have the same value in `other`.
  bool Determines(const std::vector<size_t>& columns, size_t other) const;
  // Returns true iff a row has a value in the column.
  bool HasValue(size_t column) const;
  // Returns true iff a row has a value in the column, and all values are numbers.
  bool HasNumbers(size_t column) const;
  // Returns the columns that say which case a row is of, such as workload, device and memory.
  std::vector<size_t> Settings() const;
};

// Adds the column "memory" to a table that has the column "memory_bytes".
void AddMemory(ValueTable& table);

// Returns the values of all columns but arrays. The usual columns are those called `usual`, or if
// there are no such names those that have a header.
template <typename T>
ValueTable ValueTableOf(const Columns<T>& columns, Items<T> items,
                        std::span<const std::string_view> usual = {}) {
  ValueTable table;
  table.rows.resize(items.size());
  for (const Column<T>& column : columns) {
    if (column.type == "array") continue;
    const bool is_usual =
        usual.empty() ? !column.header.empty() : std::ranges::count(usual, column.name) > 0;
    table.columns.push_back({column.name, std::string(column.unit), is_usual});
    for (size_t i = 0; i < items.size(); ++i) {
      table.rows[i].push_back(column.IsIn(items[i]) ? column.get(items[i]) : Value());
    }
  }
  AddMemory(table);
  return table;
}

// Returns the words of a column's name without its unit: "peak allocated" of
// "peak_allocated_bytes".
std::string WordsOf(const ValueTable::Column& column);
// Returns the words with the unit of the column's cells: "iteration (ms)", "peak allocated (GiB)".
std::string HeadOf(const ValueTable::Column& column);

// Returns a value with four significant digits, or with six if the column has no unit. Numbers have
// all digits before the point. Sizes are in GiB.
std::string CellOf(const Value& value, std::string_view unit);

// Returns the settings that all rows have in common, without the columns that are shown:
// "vgg16:64, device h200, memory 40%".
std::string CommonSettings(const ValueTable& table, const std::vector<size_t>& shown);

// Returns a sentence on percentages if a cell of the column "memory" is one.
std::vector<std::string> NotesOn(const ValueTable& table);

// Returns the columns `names`. If `names` is empty, returns the settings that differ between rows
// and follow from no other, and then the usual columns that have a value, or all if none is usual.
// REQUIRES: there are rows.
TextTable ChooseColumns(const ValueTable& table, const std::vector<std::string>& names);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_VALUE_TABLE_H_
