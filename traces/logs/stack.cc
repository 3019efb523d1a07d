#include "traces/logs/stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spillway::traces {
namespace {

// Directories of PyTorch, and files without their extensions, by which a checkout of its source is
// recognised.
constexpr std::string_view kPartsOfTorch[] = {
    "nn",       "optim", "autograd", "utils",   "cuda",   "amp",        "jit",     "fx",
    "func",     "ao",    "export",   "library", "random", "functional", "storage", "overrides",
    "backends", "hub",   "fft",      "linalg",  "sparse", "special",    "testing", "distributed"};
// Files and directories of PyTorch whose functions only call other code.
constexpr std::string_view kMachinery[] = {"torch/_dynamo/",
                                           "torch/_functorch/",
                                           "torch/_ops.py",
                                           "torch/_compile.py",
                                           "torch/fx/",
                                           "torch/autograd/",
                                           "torch/utils/hooks.py",
                                           "torch/_library/",
                                           "torch/overrides.py",
                                           "torch/_inductor/",
                                           "torch/utils/_device.py",
                                           "torch/nn/modules/container.py",
                                           "torch/utils/_contextlib.py"};
// Files of Python itself that stand between a caller and what it calls, wherever they lie.
constexpr std::string_view kCallers[] = {"contextlib.py", "functools.py", "runpy.py",
                                         "threading.py", "concurrent/futures/thread.py"};

// Returns true iff the path ends with a directory or file called `tail`.
bool EndsWithPart(std::string_view path, std::string_view tail) {
  return path.ends_with(tail) &&
         (path.size() == tail.size() || path[path.size() - tail.size() - 1] == '/');
}

// Returns the position behind the last "/NAME/" of the path, or npos. A path may begin with
// "NAME/".
size_t Behind(std::string_view path, std::string_view name) {
  for (size_t at = path.rfind(name); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : path.rfind(name, at - 1)) {
    if (at == 0 || path[at - 1] == '/') return at + name.size();
  }
  return std::string_view::npos;
}

// Returns the position of PyTorch's own directory in a path outside of installed packages, or npos.
size_t TorchIn(std::string_view path) {
  const size_t behind = Behind(path, "torch/");
  if (behind == std::string_view::npos) return behind;
  std::string_view part = path.substr(behind);
  part = part.substr(0, part.find_first_of("/."));
  const bool known = part.starts_with('_') || std::ranges::count(kPartsOfTorch, part) > 0;
  return known ? behind - std::string_view("torch/").size() : std::string_view::npos;
}

bool IsWrapperName(std::string_view function) {
  return function.find("wrap") != std::string_view::npos || function.starts_with("decorate") ||
         function == "inner" || function == "_fn" || function == "_call_impl" ||
         function == "__call__";
}

}  // namespace

std::string ShortPath(std::string_view file) {
  std::string path(file);
  std::ranges::replace(path, '\\', '/');
  for (const std::string_view packages : {"site-packages/", "dist-packages/"}) {
    const size_t behind = Behind(path, packages);
    if (behind != std::string::npos) return path.substr(behind);
  }
  const size_t torch = TorchIn(path);
  return torch == std::string::npos ? path : path.substr(torch);
}

FrameKind KindOf(const StackFrame& frame) {
  const std::string path = ShortPath(frame.file);
  const std::string_view view = path;
  const auto begins = [&](std::string_view part) { return view.starts_with(part); };
  if (begins("<eval_with_key>") || view.find("torchinductor_") != std::string_view::npos) {
    return FrameKind::kOperator;  // code that PyTorch generated
  }
  if (begins("<frozen")) return FrameKind::kWrapper;
  if (!begins("<") && !view.ends_with(".py") && !view.ends_with(".pyx")) return FrameKind::kNative;
  if (begins("torch/") || begins("functorch/") || begins("triton/")) {
    const bool calls = begins("triton/") || std::ranges::any_of(kMachinery, begins);
    return calls || IsWrapperName(frame.function) ? FrameKind::kMachinery : FrameKind::kOperator;
  }
  const bool of_python = view.find("/lib/python3") != std::string_view::npos ||
                         std::ranges::any_of(kCallers, [&](std::string_view caller) {
                           return EndsWithPart(view, caller);
                         });
  return of_python || (IsWrapperName(frame.function) && frame.function != "__call__")
             ? FrameKind::kWrapper
             : FrameKind::kCode;
}

std::string TextOf(const StackFrame& frame, bool name_only) {
  std::string path = ShortPath(frame.file);
  if (name_only) path.erase(0, path.rfind('/') + 1);
  return fmt::format("{}:{} {}", path, frame.line, frame.function);
}

const StackFrame* RequesterOf(const Stack& stack) {
  const auto first = std::ranges::min_element(stack, {}, KindOf);
  return first == stack.end() ? nullptr : &*first;
}

const StackFrame* OperatorOf(const Stack& stack) {
  const StackFrame* const requester = RequesterOf(stack);
  for (const StackFrame& frame : stack) {
    if (&frame == requester) break;
    if (KindOf(frame) == FrameKind::kOperator) return &frame;
  }
  return nullptr;
}

std::vector<const StackFrame*> CallsOf(const Stack& stack) {
  std::vector<const StackFrame*> calls;
  const StackFrame* const requester = RequesterOf(stack);
  for (const StackFrame& frame : stack) {
    const bool calls_on = frame.function == "__call__" && &frame != requester;
    if (KindOf(frame) == FrameKind::kCode && !calls_on) calls.push_back(&frame);
  }
  return calls;
}

}  // namespace spillway::traces
