// The commit that the program is built from, "-dirty" behind it where the tree was changed;
// "unknown" where it was built outside a Git working tree.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_COMMIT_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_COMMIT_H_

namespace spillway::cli {

// Defined by scripts/write_commit.cmake, with each build.
extern const char* const kCommit;

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_COMMIT_H_
