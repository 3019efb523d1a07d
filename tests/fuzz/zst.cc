// Fuzz target: reading files of any kind into memory, above all Zstandard.
//
// The contents stay within the limit and within the most that a file of this size may hold. A
// second reading gives the same contents. They survive being written compressed. Traces are read
// from the file in the way of `ReadTrace`.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/fuzz/property.h"
#include "traces/base/file.h"
#include "traces/format.h"

namespace spillway::fuzz {
namespace {

constexpr Bytes kSmallLimit = Bytes::KiB(64);

// A file in memory that has a path.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", 0)) {
    SPILLWAY_CHECK(fd_ >= 0);
    while (size > 0) {
      const ssize_t count = ::write(fd_, data, size);
      SPILLWAY_CHECK(count > 0);
      data += count;
      size -= static_cast<size_t>(count);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// The file to which contents are written and from which they are read back. It is removed at the
// end of the process.
class ScratchFile {
 public:
  ScratchFile()
      : path_(std::filesystem::temp_directory_path() /
              ("spillway-fuzz-" + std::to_string(::getpid()) + ".zst")) {}
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace
}  // namespace spillway::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const MemoryFile file(data, size);
  const std::string path = file.path();

  std::string small;
  const bool is_small = Accepts(path, "", [&] { small = ReadFile(path, kSmallLimit); });
  SPILLWAY_CHECK(small.size() <= static_cast<size_t>(kSmallLimit.count()));
  std::string contents;
  const bool is_file = Accepts(path, "", [&] { contents = ReadFile(path); });
  if (is_small) SPILLWAY_CHECK(is_file && contents == small);
  if (!is_file) return 0;
  SPILLWAY_CHECK(contents.size() <= std::max(size_t{16} << 20, 1000 * size));

  Accepts(path, "", [&] { ReadTrace(path); });
  if (is_small) {
    const ScratchFile scratch;
    WriteFile(scratch.path(), contents);
    SPILLWAY_CHECK(ReadFile(scratch.path()) == contents);
  }
  return 0;
}
