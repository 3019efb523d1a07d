// Splits lines of CSV files (RFC 4180) into fields and quotes single fields.

#ifndef SPILLWAY_TRACES_BASE_CSV_H_
#define SPILLWAY_TRACES_BASE_CSV_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/error.h"

namespace spillway::traces {

// Returns the fields of one line, without a line end. A field may be enclosed in quotes; two quotes
// inside it stand for one. Carriage returns are dropped. Throws `InputError` if a quote is left
// open.
std::vector<std::string> SplitCsv(std::string_view line);

// Calls `visit(number, fields)` for each line of a text. The first line has the number 1. Throws
// `InputError` that names `origin` and the line if a quote is left open.
template <typename Visit>
void ForEachCsvLine(std::string_view text, const std::string& origin, const Visit& visit) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(number, WithContext([&] { return SplitCsv(text.substr(0, end)); },
                              [&] { return origin + ":" + std::to_string(number) + ":1"; }));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Returns the field as it is spelled in a file, in quotes if it needs them.
std::string CsvField(std::string_view text);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_CSV_H_
