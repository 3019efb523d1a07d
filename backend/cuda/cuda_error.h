// Checks of the return codes of the CUDA runtime, cuBLAS and cuDNN, turned into exceptions.
//
// A failed check throws `EnvironmentError` where the machine lacks something (no GPU, a driver that
// is too old, a library that does not load), else `Error`. The message holds the text of the call,
// the name of the code and what was being executed.

#ifndef SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_
#define SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace spillway {

// What a call is part of, for messages. Empty fields are left out.
struct Activity {
  std::string_view op;
  std::string_view slot;
  std::string_view algorithm;
};

// "op 'conv1_1.bwd', slot 'bwd_data', algorithm 'fft'".
std::string Describe(const Activity& activity);

// Throws if `code` is not success. `call` is the text of the call.
void CheckCuda(cudaError_t code, const char* call, const Activity& activity = {});
void CheckCublas(cublasStatus_t code, const char* call, const Activity& activity = {});

// The common end of all checks. `environment` says which class to throw.
[[noreturn]] void ThrowLibraryError(bool environment, std::string_view call, std::string_view code,
                                    std::string_view explanation, const Activity& activity);

// Throws `EnvironmentError` that says what is missing unless this machine has a GPU, number
// `device`, that can be used.
void RequireDevice(int device);

}  // namespace spillway

// Runs a call and checks its code. The optional second argument is the `Activity`.
#define SPILLWAY_CUDA_CALL(call, ...) \
  ::spillway::CheckCuda((call), #call __VA_OPT__(, ) __VA_ARGS__)
#define SPILLWAY_CUBLAS_CALL(call, ...) \
  ::spillway::CheckCublas((call), #call __VA_OPT__(, ) __VA_ARGS__)

#endif  // SPILLWAY_BACKEND_CUDA_CUDA_ERROR_H_
