// Makes the page of a report: one HTML file that needs no other file.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_

#include <string>
#include <vector>

namespace spillway::lab {

// A `ReportSection` is a part of the page with its data.
struct ReportSection {
  enum class Kind : uint8_t {
    kResults,     // an array of rows with the columns of `ResultColumns`
    kValidation,  // rows with a predicted and a measured iteration
    kTable,       // other rows
    kTimeline,    // an object of `TimelineJson`
  };
  Kind kind = Kind::kResults;
  std::string title;
  std::string command;  // the command that produces the data; may be empty
  std::string json;
};

// Returns the page as HTML. Throws `EnvironmentError` if the plotting library is missing, and
// `InputError` if a file of the page cannot be read.
std::string FormatReport(const std::string& title, const std::vector<ReportSection>& sections);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_
