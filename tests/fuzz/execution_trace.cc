// Execution traces of PyTorch, imported with the profile of the small step: any file gives
// `InputError` or a trace that is valid and whose ops take as long as the kernels.

#include "tests/fuzz/recorded_step.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  fuzz::Import(fuzz::kKineto, fuzz::Text(data, size));
  return 0;
}
