// Allocation logs that are text: RMM logs, static allocation problems, and our own decision files.
//
//   rmm        Thread,Time,Action,Pointer,Size,Stream  as RAPIDS Memory Manager's logging adaptor
//              writes them; actions are allocate, free and "allocate failure". Other columns are
//              passed over, and so are free records of null pointers.
//   static     id,lower,upper,size  each block lives in [lower, upper); at equal times frees come
//              first, then allocations in the order of the file
//   decisions  the JSON of `spillway run --export-decisions`: its device placements

#ifndef SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_
#define SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_

#include <memory>
#include <string>
#include <string_view>

#include "traces/logs/memory_log.h"

namespace spillway {

// Each throws `InputError` "origin:line:column: message". RMM logs are
// checked while they are walked, the others at once.
std::unique_ptr<MemoryLog> ParseRmmLog(std::string contents, const std::string& origin);
std::unique_ptr<MemoryLog> ParseStaticProblem(std::string_view contents, const std::string& origin);
std::unique_ptr<MemoryLog> ParseDecisionsLog(std::string_view contents, const std::string& origin);

// Whether a header line is that of the format.
bool IsRmmHeader(std::string_view line);
bool IsStaticHeader(std::string_view line);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_
