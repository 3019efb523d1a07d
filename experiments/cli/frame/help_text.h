// The help on the program and its verbs, made from the declarations.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_HELP_TEXT_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_HELP_TEXT_H_

#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"

namespace spillway::cli {

// Returns the help on the last of the commands, each of which is a verb of the one before it. Lines
// are as long as the terminal allows, or 80 characters if there is none.
std::string HelpText(const std::vector<Command*>& chain);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_HELP_TEXT_H_
