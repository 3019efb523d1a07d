// Reads the files that a report is made from: results of sweeps and of other commands.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_

#include <string>

#include "experiments/tools/report/page.h"

namespace spillway::lab {

// Returns the section for a file that spillway wrote: the store of a sweep (.sqlite), or rows as
// CSV or JSON (.csv, .json) of run, compare, sweep export, validate or replay. The contents decide
// the kind of the section. Throws an `InputError` that begins with the path for any other file.
ReportSection ReadSource(const std::string& path);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPORT_SOURCES_H_
