// One row of results, and tables, CSV and JSON of many.
//
// The names of the columns are part of the program's interface: flag, TOML key and column share one
// name each. JSON carries a schema version; CSV follows RFC 4180.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_RESULT_ROW_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_RESULT_ROW_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "experiments/run/simulate.h"
#include "sim/core/report.h"

namespace spillway {

enum class Format : uint8_t { kTable, kCsv, kJson };

struct Column;
using Row = std::vector<Column>;

// Rows within a row: an array of objects in JSON, left out of CSV and tables.
using NestedRows = std::shared_ptr<const std::vector<Row>>;

// Absent values print as an empty CSV field and as null in JSON.
using Value = std::variant<std::monostate, int64_t, double, bool, std::string, NestedRows>;

struct Column {
  std::string name;
  Value value;
};

// The row of one run. `ideal` is `SimulateIdeal` of the same set-up.
Row MakeResultRow(const Setup& setup, std::string_view policy, std::string_view backend,
                  const Outcome& outcome, const Report& ideal);

// The rows as one text, ending in a newline. REQUIRES: all rows have the same columns.
std::string FormatCsv(const std::vector<Row>& rows);
// The spelling of one value in JSON.
std::string FormatJsonValue(const Value& value);
// {"schema": schema, "rows": [...]}
std::string FormatJson(const std::vector<Row>& rows, std::string_view schema);

// Cells in aligned columns; the first row is the header. Numbers are aligned to the right.
std::string FormatTable(const std::vector<std::vector<std::string>>& cells);

// The comparison of policies for people: times, memory, traffic, stalls by cause, distance to the
// bounds.
std::string FormatComparison(const std::vector<Row>& rows);

// What compression saves and costs, likewise; empty for runs without it.
std::string FormatCompression(const std::vector<Row>& rows);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_RESULT_ROW_H_
