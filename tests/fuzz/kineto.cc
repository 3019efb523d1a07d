// Traces of PyTorch's profiler, and what is imported with them: any two files give `InputError` or
// a trace that is valid and whose ops take as long as the kernels.
//
// What stands behind a byte 0 is the execution trace, else it is that of the small step.

#include "tests/fuzz/recorded_step.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view text = fuzz::Text(data, size);
  const size_t end = text.find('\0');
  fuzz::Import(text.substr(0, end),
               end == text.npos ? fuzz::kExecutionTrace : text.substr(end + 1));
  return 0;
}
