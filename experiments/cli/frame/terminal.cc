#include "experiments/cli/frame/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "experiments/output/wrap.h"

namespace spillway::cli {

size_t TerminalWidth() {
  const char* const columns = std::getenv("COLUMNS");
  if (const int asked = columns != nullptr ? std::atoi(columns) : 0; asked > 0) return asked;
  if (::isatty(STDOUT_FILENO) != 1) return 0;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                           : kTextWidth;
}

}  // namespace spillway::cli
