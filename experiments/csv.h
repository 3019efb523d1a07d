// One line of a CSV file, taken apart.

#ifndef SPILLWAY_EXPERIMENTS_CSV_H_
#define SPILLWAY_EXPERIMENTS_CSV_H_

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// The fields of one line without its end; quotes may enclose a field, two quotes inside stand for
// one. Carriage returns are dropped.
std::vector<std::string> SplitCsv(std::string_view line);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_CSV_H_
