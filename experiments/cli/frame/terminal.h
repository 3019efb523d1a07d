// The terminal that a user looks at.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_TERMINAL_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_TERMINAL_H_

#include <cstddef>

namespace spillway::cli {

// Returns the number of characters in a line: the environment variable COLUMNS if it is a number
// above 0; otherwise that of the terminal if standard output is one; otherwise 0, for no limit.
size_t TerminalWidth();

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_TERMINAL_H_
