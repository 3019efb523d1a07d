// What a report is made from, as far as it lies in files: results of sweeps and of other commands.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_

#include <string>

#include "experiments/tools/report/page.h"

namespace spillway {

// The section of a file that spillway wrote: the store of a sweep (.sqlite), or rows as CSV or JSON
// (.csv, .json) of run, compare, sweep export, validate or replay. What it holds is known by its
// contents. Throws `InputError` that begins with the path for anything else.
ReportSection ReadSource(const std::string& path);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_
