// What the headers of this folder declare, in a build without CUDA: all of it says what is missing.

#include "backend/cuda/calibrator.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/recorder.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

[[noreturn]] void NotCompiledIn() {
  throw EnvironmentError(
      "this build has no CUDA backend, so it uses no GPU; it needs nvcc and cuDNN at build time "
      "(-DSPILLWAY_CUDA=ON)");
}

}  // namespace

bool CudaCompiledIn() { return false; }
std::string DescribeCudaDevice(int) { NotCompiledIn(); }
std::vector<std::string> DescribePeers(int) { NotCompiledIn(); }
CostTable Record(const Trace&, const RecordOptions&) { NotCompiledIn(); }
Machine DescribeGpu(int) { NotCompiledIn(); }
Measurements Calibrate(const CalibrateOptions&) { NotCompiledIn(); }

// Never made; the class is complete for those who hold one.
struct CudaMachine::Impl {};
CudaMachine::CudaMachine(const Options&) { NotCompiledIn(); }
CudaMachine::~CudaMachine() = default;
std::unique_ptr<Executor> CudaMachine::Open(const Trace&, const CostModel&, const CudaRunOptions&) {
  NotCompiledIn();
}
std::string CudaMachine::gpu() const { NotCompiledIn(); }
std::string CudaMachine::cudnn() const { NotCompiledIn(); }
Bytes CudaMachine::free_memory() const { NotCompiledIn(); }

}  // namespace spillway
