// What a run did and what it cost: three logs, and metrics that are pure functions of them.
//
// The logs describe one iteration, the last one run (the steady state where one was reached).
// Equality of two decision logs and two placement logs is what "the backends agree" means.

#ifndef SPILLWAY_SIM_CORE_REPORT_H_
#define SPILLWAY_SIM_CORE_REPORT_H_

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/backend.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// Stands in a log for something that belongs to no tensor: a workspace.
inline constexpr TensorId kNoTensor{0xffffffff};

enum class Verb : uint8_t {
  kOffload,
  kRelease,
  kPrefetch,
  kEvict,
  kFence,
  kReserve,
  kReserveWorkspace,
  kFetch,      // the runtime brought back an input that nobody had prefetched
  kRecompute,  // the runtime ran an op again
  kRun,        // one part of an op, with the kernel chosen
};
std::string_view Name(Verb verb);

// A verb that was called, or an action of the runtime, at an op of the trace. Verbs that said false
// are logged too, with `done` false.
struct Decision {
  OpId op{};
  Verb verb = Verb::kRun;
  bool done = true;
  TensorId tensor = kNoTensor;
  KernelRun run;  // for kRun
  bool operator==(const Decision&) const = default;
};

enum class PlacementKind : uint8_t {
  kAllocate,  // a block was taken from the allocator
  kFree,      // and given back
  kEnter,     // a tensor or workspace began to use a block that was reserved for the whole run
  kLeave,     // and ended
};

// A change of what lies where on the device or in a pool outside. The log of an iteration begins
// with what is held from before: parameters, optimizer state, reservations.
struct Placement {
  PlacementKind kind = PlacementKind::kAllocate;
  PoolId pool = PoolId::kDevice;
  Hint hint = Hint::kLow;  // of the request for a device block
  OpId op{};
  TensorId tensor = kNoTensor;
  uint32_t commands = 0;  // commands issued in this iteration before it
  Bytes requested;
  Block block;
  Bytes reserved;  // the allocator's reserved bytes just after

  bool on_device() const { return pool == PoolId::kDevice; }
  bool operator==(const Placement&) const = default;
};

enum class CommandKind : uint8_t { kKernel, kToDevice, kToHost };

// One command that the runtime issued, with the time it took.
struct TimelineEntry {
  CommandKind kind = CommandKind::kKernel;
  bool recompute = false;
  OpId op{};  // the op executed, or the op of the trace at which the copy was issued
  TensorId tensor = kNoTensor;  // of a copy
  Event event;
  uint32_t first_wait = 0;  // its waits are Report::waits[first_wait, first_wait + wait_count)
  uint32_t wait_count = 0;
  Bytes size;        // bytes of a copy, workspace of a kernel
  Block device;      // range of a copy, workspace of a kernel
  Block outside;     // range of a copy, in the pool of its stream
  Duration nominal;  // the cost model's time
  Interval interval;

  bool operator==(const TimelineEntry&) const = default;
};

// Why a workload does not fit: the request that failed.
struct OutOfMemory {
  OpId op{};
  std::string op_name;
  PoolId pool = PoolId::kDevice;
  std::string what;  // "output conv1_1.y", "workspace"
  Bytes wanted;
  Bytes capacity;
  MemoryStats stats;
  struct Holder {
    std::string name;
    Bytes size;
  };
  std::vector<Holder> holders;  // live blocks, largest first

  // Two or three sentences for people, with the largest holders.
  std::string Message() const;
};

// Time that the compute stream spent waiting, by what it waited for last.
struct Stalls {
  Duration fetch;
  Duration fence;
  Duration memory;
  Duration launch;  // the host had not enqueued the op yet
  Duration drain;   // after the last op, until the last copy ended
  Duration total() const { return fetch + fence + memory + launch + drain; }
};

// Bytes of one pool outside the device.
struct PoolUse {
  Bytes peak;  // allocated
  Bytes offloaded;
  Bytes prefetched;
};

struct Metrics {
  Duration iteration;    // from the start of the iteration until everything issued has completed
  Duration compute;      // the compute stream was running a kernel
  Duration recompute;    // of that, ops run again
  Stalls stalls;         // iteration == compute + stalls.total()
  Bytes peak_requested;  // of the device allocator, as are the next five
  Bytes peak_allocated;
  Bytes peak_reserved;
  Bytes average_requested;  // weighted by time, from each op's start to the next one's
  Bytes average_allocated;
  Bytes average_reserved;
  Bytes offloaded;
  Bytes prefetched;                        // fetches included
  Bytes pinned_peak;                       // of the host's pool
  std::array<PoolUse, kMaxPools> pools{};  // by number; their sums are `offloaded` and `prefetched`
  int64_t recomputed_ops = 0;

  // 1 - peak allocated / peak reserved: the part of the arena lost between blocks at the worst
  // moment.
  double fragmentation() const;
};

// What no policy can beat on this trace.
struct Bounds {
  Duration compute;  // the kernels chosen, back to back
  Duration copy;     // the bytes moved, over the links alone
  Bytes layer;       // max(l_i): parameters and optimizer state plus the largest op's other tensors
};

// "device", "pinned host"; others by number.
std::string_view Name(PoolId pool);

struct Report {
  std::vector<std::string> pools{"host"};  // names of those outside the device, by number
  std::vector<Decision> decisions;
  std::vector<Placement> placements;
  std::vector<TimelineEntry> timeline;
  std::vector<Wait> waits;
  // The mappings of the arena's allocator that say which memory lies behind addresses: blocks on
  // the device are addresses. Of all iterations.
  std::vector<DriverCall> mappings;

  std::optional<OutOfMemory>
      out_of_memory;  // set: the logs end at the failure, times are not meaningful
  Metrics metrics;
  Bounds bounds;
  int iterations = 0;   // iterations run
  bool steady = false;  // the last two agreed in decisions, placements and time
  Duration shortest;    // over the iterations run; equal to `longest` where steady from the start
  Duration longest;
  Duration pinning;  // one-time cost of the pinned host pool, not part of any iteration
  std::string plan;  // of the policy, if it has one: `Preparation::plan`, `Policy::ExportPlan`

  bool fits() const { return !out_of_memory.has_value(); }
};

// max(l_i) of the trace: over its ops, the largest sum of distinct storages that one op uses, each
// rounded up to `alignment`, plus all parameters and optimizer state. SuperNeurons, section 3,
// gives the idea; parameters are added because they stay on the device, but for those that are
// `outside` between the ops that use them.
Bytes LayerBound(const Trace& trace, const Liveness& liveness, Bytes alignment,
                 const std::function<bool(TensorId)>& outside = {});
Bytes LayerBound(const Trace& trace, Bytes alignment);

// So many percent of the way from a floor to a peak, rounded up to `alignment`.
Bytes MemoryAt(double percent, Bytes floor, Bytes peak, Bytes alignment);

// The metrics of a run's logs. REQUIRES: the logs are complete (`report.fits()`).
Metrics ComputeMetrics(const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_REPORT_H_
