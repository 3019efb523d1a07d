// A GPU and its host as numbers, which the engine and the cost models use.
//
// There is one TOML file per device in sim/devices/, which gives a source for each number. A device
// is not a model: sim/engine and sim/cost document how the numbers are used.

#ifndef SPILLWAY_SIM_CORE_DEVICE_H_
#define SPILLWAY_SIM_CORE_DEVICE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/ops/data_type.h"
#include "traces/ops/op_type.h"

namespace spillway::sim {

// One direction of the interconnect: a transfer of n bytes alone takes latency + n / bandwidth.
struct Link {
  Bandwidth bandwidth;
  Duration latency;
};

// The cost of a driver call for n bytes: fixed + per_mib * n / MiB, at most half of
// `Duration::Max()`. Below 1 MiB the cost is `small`, where known: the driver cuts such blocks from
// pages that it already has.
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

// Memory other than the device's and the host's to which tensors may be copied, over a separate
// link or over the host's link.
struct ExternalPool {
  enum class Kind : uint8_t {
    kPeer,    // memory of another GPU of the machine
    kRemote,  // memory of another machine
    kNvme,
  };

  Kind kind = Kind::kPeer;
  Bytes size;
  Link in;                 // to the device
  Link out;                // from the device
  Bandwidth duplex;        // shared by both directions when they run at once
  bool over_host = false;  // copies share the host's link with the copies of the host pool
  int gpu = 1;             // for a peer: its CUDA device number, different from the device's
};

// Returns "peer", "remote" or "nvme".
std::string_view Name(ExternalPool::Kind kind);

// The links to other GPUs that run the same program: those of one host are linked to each other,
// and each reaches other hosts through a network card of its own.
struct Cluster {
  int gpus = 8;  // of one host
  Link inside;   // of a GPU to others of its host, in each direction; the latency is that of a step
  Link outside;  // of a GPU to other hosts
  Duration start;     // of a collective, whatever its size
  double beside = 0;  // the part of a collective's time by which kernels beside it take longer
};

// The host processors that compress offloaded contents. The rates are bytes of original data per
// second of one thread.
struct HostCodec {
  Bandwidth compress{10'000'000'000};
  Bandwidth decompress{10'000'000'000};
  int threads = 8;
};

// The kinds of kernels that copies beside them slow down differently: matrix products,
// convolutions and fused attention of numbers of 16 bits or less, and all others.
enum class BesideKind : uint8_t { kProducts, kConvolutions, kAttention, kOther };
inline constexpr std::array<std::string_view, 4> kBesideKindNames{"products", "convolutions",
                                                                  "attention", "other"};
// Returns the kind of the kernels of an op.
BesideKind BesideKindOf(OpType type, Arithmetic arithmetic);

struct Device {
  static constexpr Bandwidth kLeastBandwidth{1'000'000};  // keeps the time of any copy in range
  static constexpr Duration kMaxTime = Duration::Milliseconds(1'000'000);  // leaves room for sums

  std::string name;                // file name without extension: "h200"
  std::string description;         // "NVIDIA H200, PCIe 5 x16"
  std::string library;             // the convolution library whose algorithms `efficiency` lists
  std::vector<std::string> gpus;   // names that drivers report for the device: "NVIDIA H200"
  std::string compute_capability;  // "9.0"; empty if unknown

  Bytes memory;
  Bytes alignment;  // granularity of the allocators
  Bytes host_memory;
  int64_t flops_per_second = 0;  // fp32, fused multiply-add counted as two
  // FLOP/s of dense matrix products with sums in fp32, for each arithmetic other than fp32 that the
  // device has units for.
  std::map<Arithmetic, int64_t> matrix_flops_per_second;
  Bandwidth dram;

  Link h2d;
  Link d2h;
  Bandwidth duplex;  // shared by both directions when they run at once
  // The pools outside other than the host's: at most `kMaxPools` - 1, each kind at most once. Entry
  // i is the pool `OutsidePool(i + 1)`.
  std::vector<ExternalPool> pools;
  std::vector<ExternalPool> known_pools;  // pools with a known link but without a size

  std::optional<Cluster> cluster;

  // The time from the end of a copy to the start of a kernel that waits for it.
  Duration kernel_wait;
  // The part of a copy's time by which the kernels of each `BesideKind` beside it take longer. A
  // recorded step has one value for all kinds (`StepHooks`), and none without it.
  std::array<double, kBesideKindNames.size()> beside_copy{};

  Duration launch_overhead;  // host time to enqueue one kernel or copy
  // Host time of a direct call of the convolution library (`Library` of the op table), as opposed
  // to a launch from a graph; `launch_overhead` if unknown.
  std::optional<Duration> library_call;
  // The host stays between one and two times this many ops ahead of the GPU; a host further ahead
  // waits before it enqueues the next command. 0 means that there is no bound.
  int launch_ahead = 0;
  HostCodec codec;
  // Bytes per second that the host reads and writes while it updates parameters as Adam does. The
  // default is half of what eight channels of DDR4-3200 move.
  Bandwidth host_update{100'000'000'000};
  CostLaw device_malloc;  // cudaMalloc
  CostLaw device_free;    // cudaFree
  CostLaw host_malloc;    // cudaMallocHost: pinned memory
  CostLaw page_map;       // maps existing memory at reserved addresses: cuMemMap and cuMemSetAccess
  CostLaw page_map_new;   // maps new memory: cuMemCreate, cuMemMap and cuMemSetAccess
  CostLaw page_unmap;     // unmaps and frees new memory: cuMemUnmap and cuMemRelease

  // The achieved fraction of `flops_per_second`, by key. "SLOT.ALGORITHM" ("fwd.fft") is for a
  // convolution algorithm, "linear.fwd" and "linear.bwd" for linear layers if they differ from
  // "default", and "default" for all other kernels. "product.NAME" and "attention.fwd" are for
  // transformers, as fractions of the rate of their arithmetic (sim/cost/sequence_time.h). For
  // cuDNN 5 and later, the operations counted are the ones that the algorithm does
  // (sim/cost/kernel_time.h). For other libraries they are the operations of a direct computation,
  // so FFT and Winograd may exceed 1. An algorithm that is not listed does not exist in the
  // library.
  std::map<std::string, double> efficiency;
};

// Returns the FLOP/s of matrix products. An arithmetic for which the device has no units has the
// rate of fp32: the library converts the operands.
int64_t MatrixRate(const Device& device, Arithmetic arithmetic);

// Returns the pools outside, including the host's, by descending bandwidth of offloads; pools of
// equal bandwidth in the order of their numbers.
std::vector<PoolId> PoolsBySpeed(const Device& device);

// Properties of a pool outside the device: its links, its shared bandwidth, its size.
const Link& LinkOf(const Device& device, PoolId pool, Direction direction);
Bandwidth DuplexOf(const Device& device, PoolId pool);
Bytes SizeOf(const Device& device, PoolId pool);
// Returns "host", "peer", "remote" or "nvme".
std::string_view NameOf(const Device& device, PoolId pool);

// Returns the time of a copy of `size` bytes between device and pool when nothing else uses the
// link. The cost model gives the time for the host pool, the device for other pools.
Duration CopyTimeOf(const CostModel& cost, const Device& device, PoolId pool, Direction direction,
                    Bytes size);

// Returns ten times the compute capability: 90 for "9.0". Returns nullopt if the text is not a
// compute capability.
std::optional<int> ParseCapability(std::string_view text);

// Reads a device file. The device's name is the file name without its extension. Values are strings
// with units (see units.h), except `description`, `library`, `gpus` and the numbers of
// `beside_copy` and `efficiency`. Every key is required unless a default or "optional" is given
// below:
//   description  library
//   gpus (an array of strings, optional)  compute_capability (optional)
//   [memory]      size  alignment (a power of two)  host
//   [compute]     flops  dram
//                 tf32  bf16  fp16  fp8 (optional: FLOP/s of matrix products)
//   [link]        h2d  h2d_latency  d2h  d2h_latency  duplex
//   [stream]      optional section: kernel_wait (default 0)
//   [beside_copy] optional section: products  convolutions  attention  other (numbers from 0 to 1,
//                 default 0)
//   [host]        launch_overhead  library_call (default: launch_overhead)
//                 compress  decompress (of one thread; default 10 GB/s)
//                 codec_threads (default "8")  launch_ahead (default: no bound)
//                 update (of all cores together; default 100 GB/s)
//   [driver]      malloc_fixed  malloc_per_mib  free_fixed  free_per_mib  pinned_fixed
//                 pinned_per_mib
//                 malloc_small  free_small (below 1 MiB; default: as other sizes)
//                 map_fixed  map_per_mib (default: as malloc)
//                 map_new_fixed  map_new_per_mib (default: as map)
//                 unmap_fixed  unmap_per_mib (default: as free)
//   [pool.peer], [pool.remote], [pool.nvme], optional sections, of which two may have a size:
//                 in  in_latency  out  out_latency  duplex
//                 size (optional; a pool without a size is listed in `known_pools`)
//                 over (the link used: "host" or "own"; default "own" for a peer, else "host")
//   [cluster]     optional section: gpus (of a host: "1" to "1024")  inside  inside_latency
//                 outside  outside_latency  start  beside (a number from 0 to 1, default 0)
//   [efficiency]  default (a number above 0, at most 4)  "linear.fwd"  "linear.bwd" (the same
//                 range, optional); and the tables fwd, bwd_data and bwd_filter, with one such
//                 number per algorithm
//   [efficiency.product], optional: fp32  tf32  tf32_unaligned  short  short_4_bytes
//                 short_2_bytes (optional numbers as above; default: "linear.fwd"): products on
//                 sequences. "short" is bf16, fp16 and fp8. "unaligned" is for operands whose rows
//                 do not all begin at multiples of 16 bytes, and "4_bytes" and "2_bytes" for those
//                 at multiples of 4 or 8 and of 2
//   [efficiency.attention], optional: fwd  bwd (as above): fused attention
// Throws `InputError` of the form "path:line:column: message" for an unknown or missing key, a
// wrong type or unit, a value out of range, or a time beyond 1000 s. A file has at most 1 MiB and
// 1000 dots, comments included: the number of dots limits the nesting of dotted keys.
Device ReadDevice(const std::string& path);

// Parses the text of a device file like `ReadDevice`; `origin` stands for the path.
Device ParseDevice(std::string_view text, const std::string& origin);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_DEVICE_H_
