// Checks the return codes of the CUDA runtime, cuBLAS and cuDNN and turns failures into exceptions.
//
// A failed check throws `EnvironmentError` if the machine lacks something (no GPU, a driver that is
// too old, a library that does not load), and otherwise `Error`. The message holds the text of the
// call, the name of the code and the activity.

#ifndef SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_
#define SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace spillway::cuda {

// The work that a call belongs to, for messages. Messages leave out empty fields.
struct Activity {
  std::string_view op;
  std::string_view slot;
  std::string_view algorithm;
};

// Returns for example "op 'conv1_1.bwd', slot 'bwd_data', algorithm 'fft'".
std::string Describe(const Activity& activity);

// Throw if `code` is not success. `call` is the text of the call.
void CheckCuda(cudaError_t code, const char* call, const Activity& activity = {});
void CheckCublas(cublasStatus_t code, const char* call, const Activity& activity = {});

// Throws `EnvironmentError` if `environment`, otherwise `Error`. All checks end here when they
// fail.
[[noreturn]] void ThrowLibraryError(bool environment, std::string_view call, std::string_view code,
                                    std::string_view explanation, const Activity& activity);

// Throws `EnvironmentError` that names the missing part if this machine has no usable GPU with
// number `device`.
void RequireDevice(int device);

}  // namespace spillway::cuda

// Runs a call and checks its code. The optional second argument is the `Activity`.
#define SPILLWAY_CUDA_CALL(call, ...) \
  ::spillway::cuda::CheckCuda((call), #call __VA_OPT__(, ) __VA_ARGS__)
#define SPILLWAY_CUBLAS_CALL(call, ...) \
  ::spillway::cuda::CheckCublas((call), #call __VA_OPT__(, ) __VA_ARGS__)

#endif  // SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_
