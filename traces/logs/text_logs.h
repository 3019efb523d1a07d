// Allocation logs in text: RMM logs, static allocation problems, and Spillway's own decision files.
//
//   rmm        Thread,Time,Action,Pointer,Size,Stream  as RAPIDS Memory Manager's logging adaptor
//              writes them; actions are allocate, free and "allocate failure". Other columns are
//              ignored, and so are free records of null pointers.
//   static     id,lower,upper,size  each block lives in [lower, upper); at equal times frees come
//              first, then allocations in the order of the file
//   decisions  the JSON of `spillway run --export decisions`: its device placements

#ifndef SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_
#define SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_

#include <memory>
#include <string>
#include <string_view>

#include "traces/logs/memory_log.h"

namespace spillway::traces {

// Parse a log. Throw `InputError` with the message "origin:line:column: message". RMM logs are
// checked while they are walked, the others at once.
std::unique_ptr<MemoryLog> ParseRmmLog(std::string contents, const std::string& origin);
std::unique_ptr<MemoryLog> ParseStaticProblem(std::string_view contents, const std::string& origin);
std::unique_ptr<MemoryLog> ParseDecisionsLog(std::string_view contents, const std::string& origin);

// Return true iff a header line is the header of the format.
bool IsRmmHeader(std::string_view line);
bool IsStaticHeader(std::string_view line);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_TEXT_LOGS_H_
