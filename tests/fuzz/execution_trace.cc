// Fuzz target: execution traces of PyTorch, imported with the profile of the small step. Any file
// gives an `InputError`, or a valid trace whose ops take as long as the kernels.

#include "tests/fuzz/recorded_step.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway::fuzz;
  Import(kKineto, Text(data, size));
  return 0;
}
