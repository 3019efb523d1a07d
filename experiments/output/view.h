// The form in which a verb writes the rows of its results.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_VIEW_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/pivot.h"
#include "experiments/output/value_table.h"

namespace spillway::lab {

// Documents for programs have all columns; tables for people have those that were chosen.
enum class Format : uint8_t { kTable, kCsv, kJson, kMarkdown, kLatex };

struct View {
  Format format = Format::kTable;
  std::vector<std::string> columns = {};  // empty: the usual ones
  std::optional<Pivot> pivot = {};        // excludes `columns`
  size_t width = 0;                       // a table's width on a terminal; 0: any

  // Returns true iff the view is the table that the verb itself makes.
  bool is_own_table() const { return format == Format::kTable && columns.empty() && !pivot; }
};

// Returns the view of a table for people. Its title begins with the words of the schema, unless it
// is a pivot. Returns an empty text if there are no rows. REQUIRES: the format is one for people.
std::string FormatView(const View& view, const ValueTable& table, std::string_view schema);

// Throws `UsageError` if the view names a column that is not in the table.
void CheckView(const View& view, const ValueTable& table);
template <typename T>
void CheckView(const View& view, const Columns<T>& columns) {
  CheckView(view, ValueTableOf<T>(columns, {}));
}

// Returns the items in the form asked for. `table()` makes the verb's own table. `usual` are the
// columns of other tables if none are chosen; by default those with a header, or all.
template <typename T, typename Table>
std::string FormatAs(const View& view, const Columns<T>& columns, Items<T> items,
                     std::string_view schema, const Table& table,
                     std::span<const std::string_view> usual = {}) {
  if (view.format == Format::kCsv) return FormatCsv(columns, items);
  if (view.format == Format::kJson) return FormatJson(columns, items, schema);
  if (view.is_own_table()) return table();
  return FormatView(view, ValueTableOf(columns, items, usual), schema);
}

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_VIEW_H_
