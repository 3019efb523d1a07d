// A backend that executes policies on a GPU: kernels, copies between device and pinned host memory,
// and waits, on three streams.
//
// Commands are held until `Synchronize` and then go to the GPU one after the other, so that what
// decides on them takes none of the iteration's time; where an allocator calls the driver between
// them, or compression is behind the copies, they go as they are issued. A wait is a CUDA event, so
// nothing blocks the host meanwhile but the driver. Time stamps around
// each command slow small kernels down, so only one iteration of a run is stamped; of the others
// the backend takes the time of the whole. What the host keeps compressed goes through staging
// buffers, and threads behind them (host_store.h). The header includes no CUDA.

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

namespace spillway {

// What each other GPU of this machine is to this one, a line each: "GPU 1, NVIDIA H200: reached
// directly". Throws `EnvironmentError` if there is no such GPU.
std::vector<std::string> DescribePeers(int device = 0);

// What runs on the compute stream.
enum class CudaWork : uint8_t {
  kKernels,  // the ops, on real data
  kSpin,     // a busy wait of the time that the cost model gives; copies are real, data is not
};

// Where the times of the stamped iteration come from.
enum class CudaTimeline : uint8_t {
  kEvents,    // events around each command, which include what the GPU takes to begin and end it
  kActivity,  // CUPTI: from a command's first kernel or copy to its last
};

// Memory of another GPU of this machine, as a pool outside.
struct CudaPeer {
  PoolId pool = OutsidePool(1);
  int gpu = 1;   // CUDA's number
  Bytes memory;  // that the run touches
};

struct CudaRunOptions {
  Bytes memory;       // bytes of the device arena that the run touches, if it has one
  Bytes host_memory;  // likewise of the pinned host pool
  std::optional<CudaPeer> peer = std::nullopt;
  CudaWork work = CudaWork::kKernels;
  Backing backing = Backing::kArena;  // of the run's allocator
  CudaTimeline timeline = CudaTimeline::kEvents;
  int launch_ahead = 32;      // as `Device::launch_ahead`, which the GPU's own queue bounds, too
  int stamped_iteration = 1;  // from 1: the one whose timeline and loss are wanted
  uint64_t seed = 1;          // of parameters and data
  GivenData given = nullptr;  // instead of synthetic data; then `top1` of the stamped iteration
  // With it, storages that are not kept compressed have pinned memory each for itself, one after
  // the other: `host_memory` is the sum of their blocks in the host pool.
  std::optional<HostCompression> compression = std::nullopt;
};

// A GPU opened for execution: libraries, streams, events and pinned memory, which runs share one
// after the other. Programs get one from the module (module.h), hence the virtual methods.
class CudaMachine {
 public:
  struct Options {
    int device = 0;
    std::string math = "fp32";  // "fp32" (fused multiply-add, no TF32) or "tf32"
    uint64_t dropout_seed = 1;
    // For copies of a few microseconds: hardware channels of their own for the streams, so that one
    // that waits does not hold up another. Large copies are slower then (cuda_backend.cc says why).
    // The first machine of a process decides.
    bool short_copies = false;
  };

  // Throws `EnvironmentError` that says what is missing if there is no usable GPU.
  explicit CudaMachine(const Options& options);
  virtual ~CudaMachine();
  CudaMachine(const CudaMachine&) = delete;
  CudaMachine& operator=(const CudaMachine&) = delete;

  // A backend for one run. The trace is the one that runs; it, the cost model, whose algorithm
  // names are executed, and the machine outlive the backend. In a timeline `issued` is the host's
  // clock since the first command. Throws `Error` if the device or the host has not that much
  // memory left, `EnvironmentError` if it lacks CUPTI and the run asks for it; the backend's
  // methods throw `Error` that names op, call and code, and `InputError` for an op that the kernel
  // layer cannot execute. REQUIRES: no other backend of the machine is alive.
  virtual std::unique_ptr<Executor> Open(const Trace& trace, const CostModel& cost,
                                         const CudaRunOptions& options);

  // Of the GPU and the libraries, as a recorded table names them.
  virtual std::string gpu() const;
  virtual std::string cudnn() const;
  virtual Bytes free_memory() const;

  struct Impl;  // of cuda_backend.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_CUDA_BACKEND_H_
