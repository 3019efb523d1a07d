// Whole files in memory: read with transparent Zstandard and gzip decompression, written by rename.

#ifndef SPILLWAY_TRACES_BASE_FILE_H_
#define SPILLWAY_TRACES_BASE_FILE_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "traces/base/units.h"

namespace spillway {

// The contents of `path`, decompressed if they start with the magic number of
// Zstandard or gzip. Throws
// `InputError` if the file is missing, is a directory, is truncated, or grows beyond
// `limit`, or when decompressed beyond both 16 MiB and 1000 times its size. Memory grows with the
// data that really comes.
std::string ReadFile(const std::filesystem::path& path, Bytes limit = Bytes::GiB(4));

// The text of a file without the mark that some editors put before UTF-8. Throws `InputError` with
// `origin` if it is in another encoding, or no text but of a known kind, which is named: a
// database, a ZIP archive, a pickle.
std::string_view PlainText(std::string_view contents, const std::string& origin);

// The path that symbolic links at the end of `path` lead to, which need not exist. Throws
// `InputError` if there are too many of them.
std::filesystem::path FollowLinks(std::filesystem::path path);

// Writes `contents` beside what `FollowLinks` says of `path` under a temporary name and renames it,
// so that the file holds either its old contents or all of the new. Compresses if `path` ends in
// ".zst". Throws `InputError` with the path and the system's reason; nothing is left behind then.
void WriteFile(const std::filesystem::path& path, std::string_view contents);

// Throws what `WriteFile` would where no file can be made: before the work, not after it.
void CheckWritable(const std::filesystem::path& path);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_BASE_FILE_H_
