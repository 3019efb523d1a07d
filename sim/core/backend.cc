#include "sim/core/backend.h"

namespace spillway {

std::string_view Name(Stream stream) {
  constexpr std::array<std::string_view, kStreamCount> kNames{"compute", "h2d", "d2h"};
  return kNames[Index(stream)];
}

}  // namespace spillway
