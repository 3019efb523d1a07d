// The results of a calibration of one GPU and its host, as plain data: copies, kernels during
// copies, driver calls and latencies.
//
// They are raw medians. experiments/tools/measure/calibration_fit.h fits laws to them. All host
// memory is pinned.

#ifndef SPILLWAY_SIM_CORE_CALIBRATION_H_
#define SPILLWAY_SIM_CORE_CALIBRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "traces/base/units.h"

namespace spillway::sim {

// The repeats of one measurement. A measurement with 0 repeats was not made.
struct Timing {
  Duration median;
  double spread = 0;  // (90th percentile - 10th percentile) / median of the repeats
  int repeats = 0;

  bool operator==(const Timing&) const = default;
};

struct Machine {
  std::string gpu;     // "NVIDIA H200"
  std::string link;    // "32.0 GT/s PCIe x16"; empty if unknown
  std::string host;    // model of the processor; empty if unknown
  std::string driver;  // "580.65.06"
  std::string cuda;    // "13.0"
  std::string date;    // ISO 8601, UTC
  std::string tool;    // "spillway 0.1.0"
  Bytes memory;        // total memory by the CUDA runtime
  Bytes l2_cache;
  std::string compute_capability;  // "9.0"; empty if not recorded
  int64_t flops = 0;  // peak fp32 rate of all multiprocessors at their highest clock; 0 if unknown

  bool operator==(const Machine&) const = default;
};

// The time of one copy of `size` bytes between the device and outside memory, on the host or on
// another GPU. `h2d` is to the device and `d2h` from it, each in its own stream with copies back to
// back. In the `both` values, the opposite direction is busy with the same copies.
struct CopyTiming {
  Bytes size;
  Timing h2d;
  Timing d2h;
  Timing h2d_single;  // one copy between two events
  Timing d2h_single;
  Timing h2d_both;
  Timing d2h_both;

  bool operator==(const CopyTiming&) const = default;
};

// cudaMemcpy within the device, which reads `size` bytes and writes `size` bytes.
struct DeviceCopyTiming {
  Bytes size;
  Timing time;

  bool operator==(const DeviceCopyTiming&) const = default;
};

enum class Load : uint8_t {
  kNone,
  kDram,     // copies device memory; bound by its bandwidth
  kCompute,  // multiplies and adds in registers
};

// The times of one kernel and one copy when several lanes run side by side, each kept busy while
// the others are timed. A lane that takes no part has 0 repeats.
struct Overlap {
  Load load = Load::kNone;
  Timing kernel;
  Timing h2d;
  Timing d2h;

  bool operator==(const Overlap&) const = default;
};

struct Overlaps {
  Bytes kernel_traffic;         // the bytes that a kDram kernel reads plus writes
  int64_t kernel_flops = 0;     // the work of a kCompute kernel; a multiply-add counts as two
  Bytes copy_size;              // the bytes of each copy
  std::vector<Overlap> points;  // each combination of load and copies except the empty one

  bool operator==(const Overlaps&) const = default;
};

struct Latencies {
  // Host time of one call on a busy stream.
  Timing enqueue_kernel;
  Timing enqueue_h2d;
  Timing enqueue_d2h;
  Timing record_event;
  Timing wait_event;
  // Times on the device. The "after" values run from the time stamp of an event to the time stamp
  // of an event behind the kernel or copy. In the "waiting" values the kernel or copy waits for an
  // event on another stream.
  Timing kernel_period;       // empty kernels back to back on one stream, each
  Timing kernel_gap;          // from the end of a tiny kernel to the start of the next
  Timing kernel_after_event;  // an empty kernel, same stream
  Timing kernel_waiting;      // an empty kernel that waits for an event behind a copy
  Timing copy_after_event;    // a copy of 4 KiB to the device, same stream
  Timing copy_waiting;  // a copy of 4 KiB to the device that waits for an event behind a kernel
  bool operator==(const Latencies&) const = default;
};

// The time to allocate `size` bytes and to give them back, one call each, on an idle device.
// Kernels use device memory before it is given back.
struct AllocationTiming {
  Bytes size;
  Timing allocate;
  Timing release;

  bool operator==(const AllocationTiming&) const = default;
};

// The time to map `size` bytes in pages of 2 MiB, one call each, on an idle device. Kernels have
// used the pages.
struct PageTiming {
  Bytes size;
  Timing map;      // existing memory at further addresses: cuMemMap and cuMemSetAccess
  Timing map_new;  // new memory: cuMemCreate, cuMemMap and cuMemSetAccess
  Timing unmap;    // new pages: cuMemUnmap and cuMemRelease

  bool operator==(const PageTiming&) const = default;
};

// Host time of one call of the convolution library on an idle device.
struct LibraryCallTiming {
  std::string call;  // "fwd.gemm in=64x56x56 out=64 kernel=3x3 stride=1 batch=16"
  Timing time;

  bool operator==(const LibraryCallTiming&) const = default;
};

struct Measurements {
  Machine machine;
  std::vector<CopyTiming> copies;       // copies from and to the host, by size
  std::vector<CopyTiming> peer_copies;  // the same for another GPU, by size; empty if not requested
  std::vector<DeviceCopyTiming> device_copies;
  Overlaps overlaps;
  Latencies latencies;
  std::vector<AllocationTiming> device_memory;  // cudaMalloc, cudaFree
  std::vector<AllocationTiming> pinned_memory;  // cudaMallocHost (touches memory), cudaFreeHost
  std::vector<PageTiming> page_memory;          // empty if pages cannot be mapped
  std::vector<LibraryCallTiming> library_calls;

  bool operator==(const Measurements&) const = default;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_CALIBRATION_H_
