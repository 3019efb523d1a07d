// The page of a report: one HTML file that needs nothing else.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_

#include <string>
#include <vector>

namespace spillway {

struct ReportSection {
  enum class Kind : uint8_t {
    kResults,     // an array of rows with the columns of `ResultColumns`
    kValidation,  // of rows that predicted and measured an iteration
    kTable,       // of other rows
    kTimeline,    // `TimelineJson`
  };
  Kind kind = Kind::kResults;
  std::string title;
  std::string command;  // that gives it; may be empty
  std::string json;
};

// Throws `EnvironmentError` if the plotting library is not there, `InputError` if a file of the
// page cannot be read.
std::string FormatReport(const std::string& title, const std::vector<ReportSection>& sections);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_PAGE_H_
