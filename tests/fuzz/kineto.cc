// Fuzz target: traces of PyTorch's profiler, imported with an execution trace. Any two files give
// an `InputError`, or a valid trace whose ops take as long as the kernels.
//
// The execution trace is the text after the first byte 0, or the trace of the small step if there
// is no byte 0.

#include "tests/fuzz/recorded_step.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  const std::string_view text = Text(data, size);
  const size_t end = text.find('\0');
  Import(text.substr(0, end), end == text.npos ? kExecutionTrace : text.substr(end + 1));
  return 0;
}
