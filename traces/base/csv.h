// Fields of CSV files (RFC 4180): one line taken apart, one field quoted.

#ifndef SPILLWAY_TRACES_BASE_CSV_H_
#define SPILLWAY_TRACES_BASE_CSV_H_

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// The fields of one line without its end; quotes may enclose a field, two quotes inside stand for
// one. Carriage returns are dropped. Throws `InputError` if a
// quote is left open.
std::vector<std::string> SplitCsv(std::string_view line);

// The field as it stands in a file, in quotes where it needs them.
std::string CsvField(std::string_view text);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_CSV_H_
