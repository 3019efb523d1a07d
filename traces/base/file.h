// Whole files in memory: reads decompress Zstandard and gzip, writes rename a temporary file.

#ifndef SPILLWAY_TRACES_BASE_FILE_H_
#define SPILLWAY_TRACES_BASE_FILE_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "traces/base/units.h"

namespace spillway::traces {

// Returns the contents of `path`, decompressed if they start with the magic number of Zstandard or
// gzip. Throws `InputError` if the file is missing, is a directory, is truncated or is larger than
// `limit`. Decompressed contents must not exceed `limit`, nor both 16 MiB and 1000 times the size
// of the file. Memory grows with the data that is really there.
std::string ReadFile(const std::filesystem::path& path, Bytes limit = Bytes::GiB(4));

// Returns the text of a file without the byte order mark that some editors put before UTF-8. Throws
// `InputError`, which starts with `origin`, if the text is in UTF-16. Also throws if the contents
// are of a known kind that is not text, which the message names: a database, a ZIP archive, a
// pickle.
std::string_view PlainText(std::string_view contents, const std::string& origin);

// Returns the path that symbolic links at the end of `path` lead to. It need not exist. Throws
// `InputError` if there are more than 40 links in a row.
std::filesystem::path FollowLinks(std::filesystem::path path);

// Writes `contents` to a temporary file in the directory of `FollowLinks(path)` and renames it to
// that path, so the file holds either its old contents or all of the new. Compresses with Zstandard
// if `FollowLinks(path)` ends in ".zst". On failure, throws `InputError` with the path and the
// system's reason and leaves no file behind.
void WriteFile(const std::filesystem::path& path, std::string_view contents);

// Throws the error of `WriteFile` if no file can be created at `path`. Lets a program fail before
// its work, not after it.
void CheckWritable(const std::filesystem::path& path);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BASE_FILE_H_
