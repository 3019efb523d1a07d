// What tests of files share: the repository's own, a directory that goes away, and the message of
// an error.

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

// A file of this repository, by its path from the root.
std::filesystem::path InSource(std::string_view path);

// An empty directory of the test's own, removed with all its contents at the end.
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

// Writes `contents` as they are.
inline void WriteRaw(const std::filesystem::path& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

// The contents as they are.
inline std::string ReadRaw(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Text of `size` bytes that does not compress to nothing.
inline std::string LongText(size_t size) {
  std::string text;
  for (uint32_t i = 0; text.size() < size; ++i) text += std::to_string(i * 2654435761u) + "\n";
  text.resize(size);
  return text;
}

// The message of the `InputError` that `run` throws; a failed test if it throws none.
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
