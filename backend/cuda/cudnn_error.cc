#include "backend/cuda/cudnn_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spillway::cuda {

bool IsEnvironment(cudnnStatus_t code) {
  return code == CUDNN_STATUS_NOT_INITIALIZED || code == CUDNN_STATUS_LICENSE_ERROR ||
         code == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH ||
         code == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ||
         code == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
}

bool IsDeclined(cudnnStatus_t code) {
  return CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_NOT_SUPPORTED ||
         CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_BAD_PARAM;
}

std::string LastCudnnError() {
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  std::string text = detail.data();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string CudnnVersion() {
  const size_t version = cudnnGetVersion();  // 91400 means 9.14.0
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void CheckCudnn(cudnnStatus_t code, const char* call, const Activity& activity) {
  if (code == CUDNN_STATUS_SUCCESS) return;
  ThrowLibraryError(IsEnvironment(code), call, cudnnGetErrorString(code), LastCudnnError(),
                    activity);
}

}  // namespace spillway::cuda
