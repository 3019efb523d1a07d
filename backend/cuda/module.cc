// Defines the symbol of module.h in the module.

#include "backend/cuda/module.h"

constinit const spillway::CudaModule spillway_cuda_module = {
    spillway::DescribeCudaDevice,
    spillway::DescribePeers,
    spillway::DescribeGpu,
    spillway::Record,
    spillway::Calibrate,
    [](const spillway::CudaMachine::Options& options) {
      return std::make_shared<spillway::CudaMachine>(options);
    },
};
