// Groups the blocks that hold the memory at a failure by the code that requested them.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_HOLDERS_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_HOLDERS_H_

#include <optional>
#include <string>
#include <vector>

#include "experiments/tools/replay/replay.h"
#include "traces/logs/memory_log.h"

namespace spillway::lab {

// The blocks of a group that were requested by one chain of calls.
struct CallChain {
  std::vector<StackFrame> calls;  // the frames of kind kCode, the innermost first
  Bytes size;                     // the sum of all blocks' sizes
  uint64_t blocks = 0;
};

// The blocks that one line requested through one operator.
struct HolderGroup {
  std::optional<StackFrame> requester;  // nullopt: no stack was recorded
  std::optional<StackFrame> through;    // the operator of PyTorch that the requester called
  Bytes size;                           // the sum of all blocks' sizes
  std::optional<Bytes> each;            // the size of each block, if they are equal
  uint64_t blocks = 0;
  uint64_t from_start = 0;        // the number of blocks that were live before the first event
  std::vector<CallChain> chains;  // most bytes first
};

// Returns the groups, most bytes first. Blocks without a stack are grouped by their size, except
// that the blocks from before the log are one group if other blocks have stacks.
std::vector<HolderGroup> GroupHolders(const MemoryLog& log, const std::vector<HeldBlock>& held);
// Returns a text for people: "loss.py:40 loss, in torch/nn/functional.py:3504 cross_entropy". If it
// has more than `width` characters, the directories are left out, then the place of the operator,
// then the beginning.
std::string NameOf(const HolderGroup& group, size_t width = 1 << 20);
// Returns the text, or its end behind "..." if it has more than `width` characters.
std::string Ending(const std::string& text, size_t width);

// A line that called, directly or not, the code that requested some of the blocks.
struct Caller {
  StackFrame frame;
  int depth = 0;  // the number of callers of the list around this one
  Bytes size;     // the sum of all blocks' sizes
  uint64_t blocks = 0;
  // The line was called several times, each time for the same blocks: the number of times and the
  // bytes of each. The layers of a network look like this.
  uint64_t times = 1;
  Bytes each_time;
};

// Returns the lines through which at least a twentieth of the bytes was requested and below which
// the memory branches: no line that they call holds nearly everything, or they were called several
// times and that line was not. Each line stands before the lines that it calls, most bytes first.
std::vector<Caller> FindCallers(const MemoryLog& log, const std::vector<HeldBlock>& held);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_REPLAY_HOLDERS_H_
