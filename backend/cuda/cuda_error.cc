#include "backend/cuda/cuda_error.h"

#include <fmt/format.h>

#include "traces/base/error.h"

namespace spillway::cuda {
namespace {

// Returns true for codes whose cause is the machine rather than the program.
bool IsEnvironment(cudaError_t code) {
  switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorStubLibrary:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string Describe(const Activity& activity) {
  std::string text;
  const auto add = [&](const char* what, std::string_view name) {
    if (!name.empty()) text += fmt::format("{}{} '{}'", text.empty() ? "" : ", ", what, name);
  };
  add("op", activity.op);
  add("slot", activity.slot);
  add("algorithm", activity.algorithm);
  return text;
}

void ThrowLibraryError(bool environment, std::string_view call, std::string_view code,
                       std::string_view explanation, const Activity& activity) {
  const std::string where = Describe(activity);
  const std::string message =
      fmt::format("{}{}{}: {} ({})", where, where.empty() ? "" : ": ", call, code, explanation);
  if (environment) throw EnvironmentError(message);
  throw Error(message);
}

void CheckCuda(cudaError_t code, const char* call, const Activity& activity) {
  if (code == cudaSuccess) return;
  ThrowLibraryError(IsEnvironment(code), call, cudaGetErrorName(code), cudaGetErrorString(code),
                    activity);
}

void CheckCublas(cublasStatus_t code, const char* call, const Activity& activity) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  const bool environment =
      code == CUBLAS_STATUS_NOT_INITIALIZED || code == CUBLAS_STATUS_ARCH_MISMATCH;
  ThrowLibraryError(environment, call, cublasGetStatusName(code), cublasGetStatusString(code),
                    activity);
}

void RequireDevice(int device) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    throw EnvironmentError("no usable CUDA GPU on this machine: no NVIDIA driver is loaded");
  }
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    throw EnvironmentError(fmt::format(
        "no usable CUDA GPU on this machine: cudaGetDeviceCount: {} ({})", cudaGetErrorName(code),
        code == cudaSuccess ? "no device" : cudaGetErrorString(code)));
  }
  if (device < 0 || device >= count) {
    throw EnvironmentError(
        fmt::format("no CUDA GPU number {}: this machine has {}", device, count));
  }
}

}  // namespace spillway::cuda
