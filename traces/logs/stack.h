// Stacks of the code that requested memory, and the frames of a stack that tell people who did.

#ifndef SPILLWAY_TRACES_LOGS_STACK_H_
#define SPILLWAY_TRACES_LOGS_STACK_H_

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::traces {

struct StackFrame {
  std::string file;
  int64_t line = 0;
  std::string function;
  auto operator<=>(const StackFrame&) const = default;
};
using Stack = std::vector<StackFrame>;  // the innermost frame comes first

enum class FrameKind : uint8_t {
  kCode,       // Python code of the program, or of a library that uses PyTorch
  kWrapper,    // a decorator, or a file of Python itself
  kOperator,   // Python code of PyTorch: an operator, a layer, an optimizer
  kMachinery,  // Python code of PyTorch that only calls other code: `Module._call_impl`
  kNative,     // C++ or CUDA, or a frame without a file
};
FrameKind KindOf(const StackFrame& frame);

// Returns the path of a file without the directories in which packages are installed, with slashes:
// "torch/nn/functional.py".
std::string ShortPath(std::string_view file);
// Returns "file:line function" with the short path of the file. `name_only` leaves its directories
// out.
std::string TextOf(const StackFrame& frame, bool name_only = false);

// Returns the frame of the stack that requested the memory, in the eyes of people: the innermost
// frame of the kind that comes first in `FrameKind`. Returns nullptr if the stack is empty.
const StackFrame* RequesterOf(const Stack& stack);
// Returns the innermost operator that the requester called, directly or not, or nullptr if it
// called none.
const StackFrame* OperatorOf(const Stack& stack);
// Returns the frames of the kind kCode, the innermost first, without each `__call__` that only
// calls other code.
std::vector<const StackFrame*> CallsOf(const Stack& stack);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_LOGS_STACK_H_
