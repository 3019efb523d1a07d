// Checks of the calls of cuDNN, as cuda_error.h for CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CUDNN_ERROR_H_
#define SPILLWAY_BACKEND_CUDA_CUDNN_ERROR_H_

#include <cudnn.h>

#include <string>

#include "backend/cuda/cuda_error.h"

namespace spillway::cuda {

// Returns true for the codes by which cuDNN declines a request, as opposed to failing.
bool IsDeclined(cudnnStatus_t code);

// Returns true for codes whose cause is this machine's installation or driver.
bool IsEnvironment(cudnnStatus_t code);

// Returns cuDNN's explanation of the last failure of this thread, in one line.
std::string LastCudnnError();

// Returns the version of the loaded library, for example "9.14.0".
std::string CudnnVersion();

// Throws if `code` is not success. `call` is the text of the call.
void CheckCudnn(cudnnStatus_t code, const char* call, const Activity& activity = {});

}  // namespace spillway::cuda

// Runs a call and checks its code. The optional second argument is the `Activity`.
#define SPILLWAY_CUDNN_CALL(call, ...) \
  ::spillway::cuda::CheckCudnn((call), #call __VA_OPT__(, ) __VA_ARGS__)

#endif  // SPILLWAY_BACKEND_CUDA_CUDNN_ERROR_H_
