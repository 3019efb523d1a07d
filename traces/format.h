// Reading and writing traces as versioned JSON; FORMAT.md beside this file is the specification.
//
// A path that ends in ".zst" is compressed with Zstandard on writing; compressed input is
// recognised by its first bytes, whatever its name. Files are written to a temporary name and then
// renamed, so a reader never sees half a file.

#ifndef SPILLWAY_TRACES_FORMAT_H_
#define SPILLWAY_TRACES_FORMAT_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace spillway {

// Reads and validates a trace. Throws `InputError`, whose message starts with the path and the byte
// offset, line or element at fault: unreadable or truncated file, bad JSON, unsupported version,
// missing or unknown key, wrong type, unknown tensor name, or anything `Trace::Validate` refuses.
Trace ReadTrace(const std::filesystem::path& path);

// As `ReadTrace` on text in memory; `origin` stands for the path in messages.
Trace ParseTrace(std::string_view json, const std::string& origin);

// The JSON text of `trace`: the same trace gives the same bytes.
std::string FormatTrace(const Trace& trace);

// Writes `FormatTrace(trace)`. Throws `InputError` if the path cannot be written.
void WriteTrace(const Trace& trace, const std::filesystem::path& path);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_FORMAT_H_
