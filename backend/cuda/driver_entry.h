// Finds functions of the NVIDIA driver at run time, so that the program starts without a driver.

#ifndef SPILLWAY_BACKEND_CUDA_DRIVER_ENTRY_H_
#define SPILLWAY_BACKEND_CUDA_DRIVER_ENTRY_H_

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "backend/cuda/cuda_error.h"
#include "traces/base/error.h"

namespace spillway::cuda {

// Returns the driver's function `name` with the interface of CUDA `version` (11020 is 11.2). Before
// CUDA 12.5, `version` has no effect. Throws `EnvironmentError` if the driver has no such function.
template <typename Function>
Function DriverEntry(const char* name, [[maybe_unused]] unsigned int version = 11020) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  SPILLWAY_CUDA_CALL(
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
#else
  SPILLWAY_CUDA_CALL(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw EnvironmentError(fmt::format("the NVIDIA driver has no {}", name));
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_DRIVER_ENTRY_H_
