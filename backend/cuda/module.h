// What programs use of the CUDA backend: a module that is loaded when it is asked for, so that
// those who use no GPU start without CUDA's libraries.

#ifndef SPILLWAY_BACKEND_CUDA_MODULE_H_
#define SPILLWAY_BACKEND_CUDA_MODULE_H_

#include <memory>

#include "backend/cuda/calibrator.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/recorder.h"

namespace spillway {

// The functions of this folder's headers by other names.
struct CudaModule {
  decltype(&DescribeCudaDevice) describe;
  decltype(&DescribePeers) describe_peers;
  decltype(&DescribeGpu) describe_gpu;
  decltype(&Record) record;
  decltype(&Calibrate) calibrate;
  std::shared_ptr<CudaMachine> (*open)(const CudaMachine::Options& options);
};

// Loads the module, found where the program finds its libraries. Throws `EnvironmentError` that
// says what is missing if this build has none, or it or a library that it needs is not there.
const CudaModule& Cuda();

}  // namespace spillway

// The symbol by which the module is found.
extern "C" const spillway::CudaModule spillway_cuda_module;

#endif  // SPILLWAY_BACKEND_CUDA_MODULE_H_
