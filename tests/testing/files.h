// Helpers for tests of files: paths in the repository, temporary directories, raw reads and writes,
// and the message of an expected error.

#ifndef SPILLWAY_TESTS_TESTING_FILES_H_
#define SPILLWAY_TESTS_TESTING_FILES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "traces/base/error.h"

namespace spillway::testing {

// Returns the path of a file of this repository. `path` is relative to the root.
std::filesystem::path InSource(std::string_view path);

// A new empty directory, which the destructor removes with all its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "spillway-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category());
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  size_t CountFiles() const {
    const std::filesystem::directory_iterator files(path_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

 private:
  std::filesystem::path path_;
};

// Writes exactly the bytes of `contents`.
inline void WriteRaw(const std::filesystem::path& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

// Returns exactly the bytes of the file.
inline std::string ReadRaw(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns a text of `size` bytes that compresses, but not to almost nothing.
inline std::string LongText(size_t size) {
  std::string text;
  for (uint32_t i = 0; text.size() < size; ++i) text += std::to_string(i * 2654435761u) + "\n";
  text.resize(size);
  return text;
}

// Returns the message of the `InputError` that `run` throws. If it throws none, the test fails.
template <typename Run>
std::string InputErrorOf(const Run& run) {
  try {
    run();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an InputError";
  return {};
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_FILES_H_
