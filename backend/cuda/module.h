// The interface between programs and the CUDA backend. The backend is a module that is loaded at
// its first use, so that programs that use no GPU start without CUDA's libraries.

#ifndef SPILLWAY_BACKEND_CUDA_MODULE_H_
#define SPILLWAY_BACKEND_CUDA_MODULE_H_

#include <memory>

#include "backend/cuda/calibrator.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/recorder.h"

namespace spillway::cuda {

// Pointers to functions of this folder's headers. `open` creates a `CudaMachine`.
struct CudaModule {
  decltype(&DescribeCudaDevice) describe;
  decltype(&DescribePeers) describe_peers;
  decltype(&DescribeGpu) describe_gpu;
  decltype(&Record) record;
  decltype(&Calibrate) calibrate;
  std::shared_ptr<CudaMachine> (*open)(const CudaMachine::Options& options);
};

// Loads the module, which is found where the program finds its libraries. Throws `EnvironmentError`
// that names the missing part if this build has no module, or if the module or a library that it
// needs cannot be loaded.
const CudaModule& Cuda();

}  // namespace spillway::cuda

// The symbol by which the program finds the module's functions.
extern "C" const spillway::cuda::CudaModule spillway_cuda_module;

#endif  // SPILLWAY_BACKEND_CUDA_MODULE_H_
