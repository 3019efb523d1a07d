// The hardware backends: what is compiled in and what this machine can run.
//
// The one place that knows whether CUDA was found at build time, so that its callers compile the
// same either way.

#ifndef SPILLWAY_BACKEND_BACKENDS_H_
#define SPILLWAY_BACKEND_BACKENDS_H_

#include <memory>
#include <string>

#include "backend/cuda/calibrator.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/recorder.h"
#include "sim/core/calibration.h"
#include "sim/core/cost_table.h"
#include "traces/trace.h"

namespace spillway {

bool CudaCompiledIn();

// The GPU that CUDA ops run on, for people: "NVIDIA H200, 140 GiB, compute capability 9.0". Throws
// `EnvironmentError` that says what is missing: this build, a driver or a GPU.
std::string CudaDevice(int device = 0);

// `Record` of backend/cuda/recorder.h; throws `EnvironmentError` if CUDA is not compiled in.
CostTable RecordCosts(const Trace& trace, const RecordOptions& options);

// `Calibrate` of backend/cuda/calibrator.h; throws `EnvironmentError` if CUDA is not compiled in.
Measurements MeasureDevice(const CalibrateOptions& options);

// `CudaMachine` of backend/cuda/cuda_backend.h; throws `EnvironmentError` if CUDA is not compiled
// in.
std::unique_ptr<CudaMachine> OpenCuda(const CudaMachine::Options& options);

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_BACKENDS_H_
