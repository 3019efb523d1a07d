// Reads and writes traces as versioned JSON. FORMAT.md in this folder is the specification.
//
// A file whose name ends in ".zst" is compressed with Zstandard on writing. Compressed input is
// recognised by its first bytes, whatever its name. Files are written under a temporary name and
// then renamed, so a reader never sees an incomplete file.

#ifndef SPILLWAY_TRACES_FORMAT_H_
#define SPILLWAY_TRACES_FORMAT_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace spillway::traces {

// Reads and validates a trace. Throws `InputError` for an unreadable or truncated file, bad JSON,
// an unsupported version, a missing or unknown key, a wrong type, an unknown tensor name, and any
// error of `Trace::Validate`. The message starts with "path:line:column: element", counted in the
// decompressed text. It starts with the path alone if the error concerns the file or the trace as a
// whole.
Trace ReadTrace(const std::filesystem::path& path);

// Reads a trace from text in memory, like `ReadTrace`. `origin` takes the place of the path in
// messages.
Trace ParseTrace(std::string_view json, const std::string& origin);

// Returns `trace` as JSON text, with one line for each tensor and op. The same trace gives the same
// bytes. Throws `InputError` if `trace` is not valid or a name in it is not UTF-8.
std::string FormatTrace(const Trace& trace);

// Writes `FormatTrace(trace)` to `path`. Throws the errors of `FormatTrace`, and `InputError` if
// the path cannot be written.
void WriteTrace(const Trace& trace, const std::filesystem::path& path);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_FORMAT_H_
