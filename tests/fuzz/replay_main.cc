// Runs a fuzz target over the files of a corpus, for builds without libFuzzer.
//
// usage: fuzz_TARGET FILE-OR-DIRECTORY...
// Files of a directory run in the order of their names. The program fails if there is no file,
// because a test over nothing proves nothing. Memory is limited as under the fuzzer: an input that
// needs more ends the process.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/property.h"
#include "traces/base/file.h"

namespace {

// No input of a corpus is larger than a few KiB.
constexpr rlim_t kMaxAddressSpace = rlim_t{512} << 20;

std::vector<std::filesystem::path> FilesOf(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string ReadBytes(const std::filesystem::path& path) {
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  SPILLWAY_CHECK(file != nullptr);
  const size_t count = std::fread(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  SPILLWAY_CHECK(count == bytes.size());
  return bytes;
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__
// AddressSanitizer reserves more address space than any limit, so its own limit is set instead.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=256"; }
#endif

int main(int argc, char** argv) {
#ifndef __SANITIZE_ADDRESS__
  const rlimit limit{kMaxAddressSpace, kMaxAddressSpace};
  SPILLWAY_CHECK(::setrlimit(RLIMIT_AS, &limit) == 0);
#endif
  size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& path : FilesOf(argv[i])) {
      const std::string bytes = ReadBytes(path);
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);  // the last name printed is the input that crashed
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++count;
    }
  }
  std::printf("%zu inputs\n", count);
  if (count > 0) return 0;
  std::fprintf(stderr, "there are no inputs to replay\n");
  return 1;
}
