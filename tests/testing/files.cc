#include "tests/testing/files.h"

namespace spillway::testing {

std::filesystem::path InSource(std::string_view path) {
  return std::filesystem::path(SPILLWAY_SOURCE_DIR) / path;
}

}  // namespace spillway::testing
