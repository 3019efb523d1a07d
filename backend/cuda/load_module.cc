// Loads the module of module.h into the program.

#include <dlfcn.h>

#include <string>

#include "backend/cuda/module.h"
#include "traces/base/error.h"

namespace spillway::cuda {

const CudaModule& Cuda() {
#ifdef SPILLWAY_CUDA_MODULE
  void* const library = ::dlopen(SPILLWAY_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
  const void* const symbol = library ? ::dlsym(library, "spillway_cuda_module") : nullptr;
  if (symbol == nullptr) {
    throw EnvironmentError(std::string("the CUDA backend cannot be loaded, so no GPU is used: ") +
                           ::dlerror());
  }
  return *static_cast<const CudaModule*>(symbol);
#else
  throw EnvironmentError(
      "this build has no CUDA backend, so it uses no GPU; it needs nvcc and cuDNN at build time "
      "(-DSPILLWAY_CUDA=ON)");
#endif
}

}  // namespace spillway::cuda
