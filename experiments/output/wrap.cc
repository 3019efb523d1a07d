#include "experiments/output/wrap.h"

#include <algorithm>

namespace spillway::lab {

std::string Wrapped(std::string_view text, size_t width, size_t indent) {
  std::string wrapped;
  while (!text.empty()) {
    std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    while (width > 0 && line.size() > width) {
      const size_t begin = line.find_first_not_of(' ');  // a line is not broken in its indent
      size_t end = line.rfind(' ', width);
      if (end == line.npos || end < begin) end = line.find(' ', begin);
      if (end == line.npos) break;
      wrapped += line.substr(0, end) + '\n';
      line.replace(0, end + 1, indent, ' ');
    }
    wrapped += line + '\n';
  }
  return wrapped;
}

std::string CutAt(size_t width, std::string line) {
  constexpr std::string_view kMore = "...";
  if (width > kMore.size() && line.size() > width) {
    line.replace(width - kMore.size(), line.npos, kMore);
  }
  return line;
}

}  // namespace spillway::lab
