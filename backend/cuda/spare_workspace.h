// A workspace outside the arena for launches that have too little, which happens only if the costs
// of a run were not measured: a roofline knows no workspaces.

#ifndef SPILLWAY_BACKEND_CUDA_SPARE_WORKSPACE_H_
#define SPILLWAY_BACKEND_CUDA_SPARE_WORKSPACE_H_

#include "backend/cuda/device_memory.h"

namespace spillway::cuda {

class SpareWorkspace {
 public:
  // Returns `given` if it has `needed` bytes. Otherwise returns the spare workspace, which grows to
  // that size. Freeing the smaller one waits for the kernels that use it.
  const DeviceRange& AtLeast(Bytes needed, const DeviceRange& given) {
    if (given.size >= needed) return given;
    if (buffer_.size() < needed) {
      buffer_ = DeviceBuffer();
      buffer_ = DeviceBuffer(needed);
    }
    return buffer_.range();
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_SPARE_WORKSPACE_H_
