// Defines the symbol of module.h in the module.

#include "backend/cuda/module.h"

constinit const spillway::cuda::CudaModule spillway_cuda_module = {
    spillway::cuda::DescribeCudaDevice,
    spillway::cuda::DescribePeers,
    spillway::cuda::DescribeGpu,
    spillway::cuda::Record,
    spillway::cuda::Calibrate,
    [](const spillway::cuda::CudaMachine::Options& options) {
      return std::make_shared<spillway::cuda::CudaMachine>(options);
    },
};
