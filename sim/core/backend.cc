#include "sim/core/backend.h"

namespace spillway::sim {

std::string_view Name(Stream stream) {
  constexpr std::array<std::string_view, kStreamCount> kNames{
      "compute", "h2d", "d2h", "in2", "out2", "in3", "out3", "lane1", "lane2", "lane3", "lane4"};
  return kNames[Index(stream)];
}

}  // namespace spillway::sim
