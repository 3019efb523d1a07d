// A GPU and its host as numbers: what the engine and the cost models know of a machine.
//
// One TOML file per device under sim/devices/, each number with its source. Not a model in itself:
// how the numbers are used is written in sim/engine and sim/cost.

#ifndef SPILLWAY_SIM_CORE_DEVICE_H_
#define SPILLWAY_SIM_CORE_DEVICE_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"

namespace spillway {

// One direction of the interconnect: a transfer of n bytes alone takes latency + n / bandwidth.
struct Link {
  Bandwidth bandwidth;
  Duration latency;
};

// The cost of a driver call that handles n bytes: fixed + per_mib * n / MiB, at most half of
// `Duration::Max()`; `small` instead for less than 1 MiB, where it is known: the driver cuts such
// blocks from pages that it has.
struct CostLaw {
  static constexpr Bytes kSmall = Bytes::MiB(1);

  Duration fixed;
  Duration per_mib;
  std::optional<Duration> small = std::nullopt;

  Duration At(Bytes size) const {
    if (small && size < kSmall) return *small;
    const auto bytes = static_cast<Int128>(size.count());
    const Int128 time = fixed.picoseconds() + bytes * per_mib.picoseconds() / (1 << 20);
    const Int128 limit = Duration::Max().picoseconds() / 2;
    return Duration::Picoseconds(static_cast<int64_t>(std::min(time, limit)));
  }
};

// Another memory than the device's and the host's that tensors may be copied to, over a link of its
// own or over the host's.
struct ExternalPool {
  enum class Kind : uint8_t {
    kPeer,    // memory of another GPU of the machine
    kRemote,  // of another machine
    kNvme,
  };

  Kind kind = Kind::kPeer;
  Bytes size;
  Link in;                 // to the device
  Link out;                // from it
  Bandwidth duplex;        // shared by both directions when they run at once
  bool over_host = false;  // its copies share the host's link with the host's own
  int gpu = 1;             // of a peer: CUDA's number, which is not that of the device
};

// "peer", "remote", "nvme".
std::string_view Name(ExternalPool::Kind kind);

// Processors of the host that compress what is offloaded; rates are those of one thread, in bytes
// of the original data.
struct HostCodec {
  Bandwidth compress{10'000'000'000};
  Bandwidth decompress{10'000'000'000};
  int threads = 8;
};

struct Device {
  static constexpr Bandwidth kLeastBandwidth{1'000'000};  // keeps the time of any copy in range
  static constexpr Duration kMaxTime = Duration::Milliseconds(1'000'000);  // leaves room for sums

  std::string name;                // file name without extension: "h200"
  std::string description;         // "NVIDIA H200, PCIe 5 x16"
  std::string library;             // convolution library whose algorithms `efficiency` lists
  std::vector<std::string> gpus;   // names that drivers report for it: "NVIDIA H200"
  std::string compute_capability;  // "9.0"; empty if not known

  Bytes memory;
  Bytes alignment;  // granularity of the allocators
  Bytes host_memory;
  int64_t flops_per_second = 0;  // fp32, fused multiply-add counted as two
  Bandwidth dram;

  Link h2d;
  Link d2h;
  Bandwidth duplex;  // shared by both directions when they run at once
  // Pools outside besides the host's, at most `kMaxPools` - 1 and each kind once: the i-th of them,
  // from 0, is `OutsidePool(i + 1)`.
  std::vector<ExternalPool> pools;
  std::vector<ExternalPool> known_pools;  // whose links are known, without a size

  // From the end of a copy to the start of a kernel that waits for it.
  Duration kernel_wait;

  Duration launch_overhead;  // host time to enqueue one kernel or copy
  // Host time of a call of the convolution library (`Library` of the op table) that is made anew,
  // not launched from a graph; as `launch_overhead` if not known.
  std::optional<Duration> library_call;
  // The host stays between one and two times this many ops ahead of the GPU: what it enqueues later
  // waits for that. 0: it may be any number ahead.
  int launch_ahead = 0;
  HostCodec codec;
  CostLaw device_malloc;  // cudaMalloc
  CostLaw device_free;    // cudaFree
  CostLaw host_malloc;    // cudaMallocHost: pinned memory
  CostLaw page_map;       // memory that there is, mapped at reserved addresses: cuMemMap and access
  CostLaw page_map_new;   // likewise new memory: cuMemCreate besides
  CostLaw page_unmap;     // new memory taken away again: cuMemUnmap and cuMemRelease

  // Achieved fraction of `flops_per_second`: "default" for whatever offers no choice, "linear.fwd"
  // and "linear.bwd" where they differ from it, and "SLOT.ALGORITHM" ("fwd.fft") for the
  // convolution algorithms. In the operations that the algorithm does from cuDNN 5 on
  // (sim/cost/kernel_time.h); for other libraries in those of a direct computation, so that FFT or
  // Winograd may exceed 1. An algorithm that is not listed does not exist there.
  std::map<std::string, double> efficiency;
};

// The pools outside, the host's included, by the bandwidth of offloads, the fastest first; of equal
// ones in their order.
std::vector<PoolId> PoolsBySpeed(const Device& device);

// Of a pool outside.
const Link& LinkOf(const Device& device, PoolId pool, Direction direction);
Bandwidth DuplexOf(const Device& device, PoolId pool);
Bytes SizeOf(const Device& device, PoolId pool);
// "host", "peer", "remote", "nvme".
std::string_view NameOf(const Device& device, PoolId pool);

// A copy of `size` bytes between device and pool with the link to itself. That of the host is the
// cost model's to say.
Duration CopyTimeOf(const CostModel& cost, const Device& device, PoolId pool, Direction direction,
                    Bytes size);

// Ten times the compute capability "9.0"; nothing for what is none.
std::optional<int> ParseCapability(std::string_view text);

// Reads a device file; `name` is that of the file without its extension. All keys are required but
// those of [host] and [driver] that say what stands in for them, and all values are strings with
// units (see units.h) but `description`, `library`, `gpus` and the numbers of `efficiency`:
//   description  library
//   gpus (an array of strings)  compute_capability; neither need be there
//   [memory]      size  alignment (a power of two)  host
//   [compute]     flops  dram
//   [link]        h2d  h2d_latency  d2h  d2h_latency  duplex
//   [stream]      kernel_wait (0 if not given); the section need not be there
//   [host]        launch_overhead  library_call (launch_overhead if not given)
//                 compress  decompress (one thread; 10 GB/s if not given)
//                 codec_threads ("8" if not given)  launch_ahead (no bound if not given)
//   [driver]      malloc_fixed  malloc_per_mib  free_fixed  free_per_mib  pinned_fixed
//                 pinned_per_mib
//                 malloc_small  free_small (below 1 MiB; as other sizes if not given)
//                 map_fixed  map_per_mib (as malloc)  map_new_fixed  map_new_per_mib (as map)
//                 unmap_fixed  unmap_per_mib (as free)
//   [pool.peer], [pool.remote], [pool.nvme], at most two of them, none of which need be there:
//                 in  in_latency  out  out_latency  duplex
//                 size (a pool without one is only known)
//                 over ("host": the host's link, or "own"; as not given for a peer)
//   [efficiency]  default, a number above 0, at most 4; "linear.fwd" and "linear.bwd" alike, which
//                 need not be there; and the tables fwd, bwd_data and bwd_filter with one such
//                 number per algorithm
// Throws `InputError` of the form "path:line:column: message": unknown or missing key, wrong type,
// wrong unit, value out of range, a time beyond 1000 s. A file has 1 MiB and 1000 dots at most,
// comments included: dotted keys nest as deep as they have dots.
Device ReadDevice(const std::string& path);

// As `ReadDevice` on text in memory; `origin` stands for the path.
Device ParseDevice(std::string_view text, const std::string& origin);

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_DEVICE_H_
