// Splits lines of CSV files (RFC 4180) into fields and quotes single fields.

#ifndef SPILLWAY_TRACES_BASE_CSV_H_
#define SPILLWAY_TRACES_BASE_CSV_H_

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Returns the fields of one line, without a line end. A field may be enclosed in quotes; two quotes
// inside it stand for one. Carriage returns are dropped. Throws `InputError` if a quote is left
// open.
std::vector<std::string> SplitCsv(std::string_view line);

// Returns the field as it is spelled in a file, in quotes if it needs them.
std::string CsvField(std::string_view text);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_CSV_H_
