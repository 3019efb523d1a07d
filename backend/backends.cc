#include "backend/backends.h"

#include "sim/core/error.h"

namespace spillway {

#ifdef SPILLWAY_HAS_CUDA

bool CudaCompiledIn() { return true; }

std::string CudaDevice(int device) { return DescribeCudaDevice(device); }

CostTable RecordCosts(const Trace& trace, const RecordOptions& options) {
  return Record(trace, options);
}

Measurements MeasureDevice(const CalibrateOptions& options) { return Calibrate(options); }

#else

namespace {

[[noreturn]] void NotCompiledIn() {
  throw EnvironmentError(
      "this build has no CUDA backend; it needs nvcc and cuDNN at build time (-DSPILLWAY_CUDA=ON)");
}

}  // namespace

bool CudaCompiledIn() { return false; }

std::string CudaDevice(int) { NotCompiledIn(); }

CostTable RecordCosts(const Trace&, const RecordOptions&) { NotCompiledIn(); }

Measurements MeasureDevice(const CalibrateOptions&) { NotCompiledIn(); }

#endif

}  // namespace spillway
