#include "backend/backends.h"

#include "traces/base/error.h"

namespace spillway {

#ifdef SPILLWAY_HAS_CUDA

bool CudaCompiledIn() { return true; }

std::string CudaDevice(int device) { return DescribeCudaDevice(device); }

CostTable RecordCosts(const Trace& trace, const RecordOptions& options) {
  return Record(trace, options);
}

Measurements MeasureDevice(const CalibrateOptions& options) { return Calibrate(options); }

std::unique_ptr<CudaMachine> OpenCuda(const CudaMachine::Options& options) {
  return std::make_unique<CudaMachine>(options);
}

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

std::unique_ptr<CudaMachine> OpenCuda(const CudaMachine::Options&) { NotCompiledIn(); }

// Never made in such a build; the class is complete for those who hold one.
struct CudaMachine::Impl {};
CudaMachine::CudaMachine(const Options&) { NotCompiledIn(); }
CudaMachine::~CudaMachine() = default;
std::unique_ptr<Executor> CudaMachine::Open(const Trace&, const CostModel&, const CudaRunOptions&) {
  NotCompiledIn();
}
std::string CudaMachine::gpu() const { NotCompiledIn(); }
std::string CudaMachine::cudnn() const { NotCompiledIn(); }
Bytes CudaMachine::free_memory() const { NotCompiledIn(); }

#endif

}  // namespace spillway
