// Pivots: the values of one column, in a table whose rows and columns are the values of others.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_PIVOT_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_PIVOT_H_

#include <string>
#include <vector>

#include "experiments/output/text_table.h"
#include "experiments/output/value_table.h"

namespace spillway::lab {

struct Pivot {
  std::vector<std::string> rows;       // the columns that say in which row a value stands
  std::string by;                      // the column that says in which column it stands
  std::string value = "iteration_ms";  // the column of the values
};

// Throws `UsageError` if a column of the pivot is not in the table or is named twice.
void CheckPivot(const ValueTable& table, const Pivot& pivot);

// Returns the pivot of the table. Rows and columns are in the order in which their values first
// appear, or ascend if all of them are numbers, percentages or sizes. A row of the table that has
// no value shows its status if that is not "ok" ("oom"), else a dash. A cell for which there is no
// row is empty. Throws `UsageError` if two rows fall into one cell. REQUIRES: there are rows.
TextTable FormatPivot(const ValueTable& table, const Pivot& pivot);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_PIVOT_H_
