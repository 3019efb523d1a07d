// A backend that executes policies on a GPU: kernels, copies between device memory and pinned host
// memory, and waits, on three streams. A peer GPU's pool adds streams for its copies.
//
// Commands are held until `Synchronize` and then go to the GPU one after the other, so that
// decisions on the host take none of the iteration's time. They go to the GPU immediately if an
// allocator calls the driver between them or copies are compressed. A wait is a CUDA event, so only
// the driver can block the host meanwhile.
//
// Time stamps around each command slow small kernels down. Therefore only one iteration of a run
// has them; for every other iteration, the backend measures only the total time. Compressed
// contents go through staging buffers to host threads (host_store.h). The header includes no CUDA.

#ifndef SPILLWAY_BACKEND_CUDA_CUDA_BACKEND_H_
#define SPILLWAY_BACKEND_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/common/synthetic_data.h"
#include "sim/core/allocator.h"
#include "sim/core/compression.h"
#include "sim/core/cost_model.h"
#include "sim/core/executor.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::cuda {

// Returns one line for each other GPU of this machine, which says how copies reach it: "GPU 1,
// NVIDIA H200: reached directly". Throws `EnvironmentError` if there is no GPU with number
// `device`.
std::vector<std::string> DescribePeers(int device = 0);

// The work that runs on the compute stream.
enum class CudaWork : uint8_t {
  kKernels,  // the kernels of the ops, on real data
  kSpin,     // busy waits of the cost model's times; copies are real, but the data is meaningless
};

// The source of the stamped iteration's times.
enum class CudaTimeline : uint8_t {
  kEvents,    // events around each command; times include the GPU's time to begin and end it
  kActivity,  // CUPTI: times run from a command's first kernel or copy to its last
};

// A pool outside the device in the memory of another GPU of this machine.
struct CudaPeer {
  PoolId pool = OutsidePool(1);
  int gpu = 1;   // CUDA's number of the other GPU
  Bytes memory;  // bytes of the pool that the run touches
};

struct CudaRunOptions {
  Bytes memory;       // bytes of the device arena that the run touches, if there is an arena
  Bytes host_memory;  // bytes of the pinned host pool that the run touches
  std::optional<CudaPeer> peer = std::nullopt;
  CudaWork work = CudaWork::kKernels;
  Backing backing = Backing::kArena;  // the backing of the run's allocator
  CudaTimeline timeline = CudaTimeline::kEvents;
  int launch_ahead = 32;      // see `Device::launch_ahead`; the GPU's queue is a bound as well
  int stamped_iteration = 1;  // the iteration, from 1, whose timeline and loss are wanted
  uint64_t seed = 1;          // for parameters and inputs
  GivenData given = nullptr;  // real contents; if set, `top1` holds the stamped iteration's result
  // If set, each storage that is not kept compressed has its own range of pinned memory.
  // `host_memory` is then the sum of their blocks in the host pool.
  std::optional<HostCompression> compression = std::nullopt;
};

// A GPU opened for execution: libraries, streams, events and pinned memory, which successive runs
// share. Its methods are virtual because programs obtain it from the module (module.h).
class CudaMachine {
 public:
  struct Options {
    int device = 0;
    std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
    uint64_t dropout_seed = 1;
    // If true, each stream has its own hardware channel, so that a copy that waits does not delay
    // other streams. This suits copies of a few microseconds; large copies become slower
    // (cuda_backend.cc says why). The first machine of a process decides for all.
    bool short_copies = false;
  };

  // Throws `EnvironmentError` that names the missing part if there is no usable GPU.
  explicit CudaMachine(const Options& options);
  virtual ~CudaMachine();
  CudaMachine(const CudaMachine&) = delete;
  CudaMachine& operator=(const CudaMachine&) = delete;

  // Returns a backend for one run. In its timeline, `issued` is the host's time since the first
  // command. The backend executes the algorithms that `cost` names.
  //
  // Throws `Error` if the device or the host has too little memory left, and `EnvironmentError` if
  // the run needs CUPTI and it is missing. The backend's methods throw `Error` that names op, call
  // and code, and `InputError` for an op that the kernel layer cannot execute.
  //
  // REQUIRES: `trace` is the one that runs. `trace`, `cost` and the machine outlive the backend,
  // and no other backend of the machine is alive.
  virtual std::unique_ptr<Executor> Open(const Trace& trace, const CostModel& cost,
                                         const CudaRunOptions& options);

  // Return the names of the GPU and of cuDNN as a recorded table spells them, and the GPU's free
  // memory.
  virtual std::string gpu() const;
  virtual std::string cudnn() const;
  virtual Bytes free_memory() const;

  struct Impl;  // defined in cuda_backend.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_CUDA_BACKEND_H_
