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

// Reads and validates a trace. Throws `InputError`: unreadable or truncated file, bad JSON,
// unsupported version, missing or unknown key, wrong type, unknown tensor name, or anything
// `Trace::Validate` refuses. The message starts with "path:line:column: element" (of the
// decompressed text), or with the path alone where the file or the trace as a whole is at fault.
Trace ReadTrace(const std::filesystem::path& path);

// As `ReadTrace` on text in memory; `origin` stands for the path in messages.
Trace ParseTrace(std::string_view json, const std::string& origin);

// The JSON text of `trace`: the same trace gives the same bytes, one line for each tensor and op.
// Throws `InputError` if `trace` is not valid, or a name in it is not UTF-8.
std::string FormatTrace(const Trace& trace);

// Writes `FormatTrace(trace)`. Throws as it does, and if the path cannot be written.
void WriteTrace(const Trace& trace, const std::filesystem::path& path);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_FORMAT_H_
