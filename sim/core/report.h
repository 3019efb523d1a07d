// The result of a run: three logs, and metrics that are pure functions of the logs.
//
// The logs describe one iteration, the last one that was run (the steady state if one was reached).
// Two backends agree if their decision logs are equal and their placement logs are equal.

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

namespace spillway::sim {

// Stands in a log entry that belongs to no tensor, for example a workspace.
inline constexpr TensorId kNoTensor{0xffffffff};

enum class Verb : uint8_t {
  kOffload,
  kRelease,
  kPrefetch,
  kEvict,
  kFence,
  kReserve,
  kReserveWorkspace,
  kFetch,      // the runtime brought back an input that the policy had not prefetched
  kRecompute,  // the runtime ran an op again
  kRun,        // one part of an op ran with the chosen kernel
};
std::string_view Name(Verb verb);

// Why a verb returned false.
enum class Refusal : uint8_t {
  kNone,     // it did not
  kPinned,   // the op that is being served uses the tensor, or the program cannot do without it
  kFull,     // the device or the pool outside has no room
  kUnknown,  // the runtime knows no contents to work on: the tensor is not where the verb needs it,
             // or cannot be recomputed; or the reservation is there already
};
// Returns "none", "pinned", "full" or "unknown".
std::string_view Name(Refusal refusal);

// A verb that the policy called, or an action of the runtime, at an op of the trace. Verbs that
// returned false are logged too, with `done` false.
struct Decision {
  OpId op{};
  Verb verb = Verb::kRun;
  bool done = true;
  TensorId tensor = kNoTensor;
  Refusal refusal = Refusal::kNone;
  KernelRun run;  // for kRun
  bool operator==(const Decision&) const = default;
};

enum class PlacementKind : uint8_t {
  kAllocate,  // a block was taken from the allocator
  kFree,      // a block was given back to the allocator
  kEnter,     // a tensor or workspace began to use a block that is reserved for the whole run
  kLeave,     // a tensor or workspace stopped using a reserved block
};

// A change in the blocks on the device or in a pool outside. The log of an iteration begins with
// the blocks that are already held: parameters, optimizer state and reservations.
struct Placement {
  PlacementKind kind = PlacementKind::kAllocate;
  PoolId pool = PoolId::kDevice;
  Hint hint = Hint::kLow;  // the hint of the request for a device block
  OpId op{};
  TensorId tensor = kNoTensor;
  uint32_t commands = 0;  // number of commands issued in this iteration before the change
  Bytes requested;
  Block block;
  Bytes reserved;  // the allocator's reserved bytes after the change

  bool on_device() const { return pool == PoolId::kDevice; }
  bool operator==(const Placement&) const = default;
};

enum class CommandKind : uint8_t { kKernel, kToDevice, kToHost };

// One command that the runtime issued, with its times.
struct TimelineEntry {
  CommandKind kind = CommandKind::kKernel;
  bool recompute = false;
  bool collective = false;
  OpId op{};  // the op that ran, or the op of the trace at which the copy was issued
  TensorId tensor = kNoTensor;  // for copies
  Event event;
  uint32_t first_wait = 0;  // its waits are Report::waits[first_wait, first_wait + wait_count)
  uint32_t wait_count = 0;
  Bytes size;        // bytes of a copy, workspace of a kernel
  Block device;      // range of a copy, workspace of a kernel
  Block outside;     // range of a copy, in the pool of its stream
  Duration nominal;  // the time by the cost model
  Interval interval;

  bool operator==(const TimelineEntry&) const = default;
};

// The request that failed, for a workload that does not fit.
struct OutOfMemory {
  // `op_name` of a request for what is on the device before the first iteration.
  static constexpr const char* kBeforeOps = "before the first op";

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

  // Returns a message for people, which names the largest holders.
  std::string Message() const;
};

// Time that the compute stream spent waiting, by the cause that ended last.
struct Stalls {
  Duration fetch;
  Duration fence;
  Duration memory;
  Duration lane;    // an op of another lane, such as a collective, had not ended yet
  Duration launch;  // the host had not enqueued the op yet
  Duration drain;   // after the last op of lane 0, until the last command ended
  Duration total() const { return fetch + fence + memory + lane + launch + drain; }
};

// Use of one pool outside the device, in bytes.
struct PoolUse {
  Bytes peak;  // the most bytes allocated at once
  Bytes offloaded;
  Bytes prefetched;
};

struct Metrics {
  Duration iteration;  // from the start of the iteration until every issued command has completed
  Duration host;       // from that start until the host has issued the last command
  Duration compute;    // time in which a kernel ran on the compute stream
  Duration communication;  // the sum of the times of collectives
  Duration exposed;        // the part in which the compute stream ran nothing else
  Duration recompute;      // the part of `compute` for ops that were run again
  Stalls stalls;           // iteration == compute + stalls.total()
  Bytes peak_requested;    // this and the next five: of the device allocator
  Bytes peak_allocated;
  Bytes peak_reserved;
  Bytes average_requested;  // weighted by time, from the start of each op to the start of the next
  Bytes average_allocated;
  Bytes average_reserved;
  Bytes offloaded;
  Bytes prefetched;                        // includes fetches
  Bytes pinned_peak;                       // the host pool's peak
  std::array<PoolUse, kMaxPools> pools{};  // by number; their sums are `offloaded` and `prefetched`
  int64_t recomputed_ops = 0;

  // Returns 1 - peak_allocated / peak_reserved, the part of the reserved memory that was lost
  // between blocks; 0 if nothing was reserved. The two peaks may occur at different times.
  double fragmentation() const;
};

// Lower bounds for any policy that runs the same kernels and moves the same bytes.
struct Bounds {
  Duration compute;  // the chosen kernels of each lane, back to back: the longest of the lanes
  Duration copy;     // the moved bytes, with the links to themselves
  Bytes layer;       // max(l_i): parameters and optimizer state plus the largest op's other tensors
};

// Returns "device", "pinned host", "pool 2" or "pool 3".
std::string_view Name(PoolId pool);

struct Report {
  std::vector<std::string> pools{"host"};  // the names of the pools outside the device, by number
  std::vector<Decision> decisions;
  std::vector<Placement> placements;
  std::vector<TimelineEntry> timeline;
  std::vector<Wait> waits;
  // The driver calls of all iterations that map memory at addresses, if the arena's allocator
  // chooses the memory. The blocks on the device are addresses.
  std::vector<DriverCall> mappings;

  std::optional<OutOfMemory>
      out_of_memory;  // if set, the logs end at the failure and the times have no meaning
  Metrics metrics;
  Bounds bounds;
  int iterations = 0;   // number of iterations run
  bool steady = false;  // the last two iterations agreed in decisions, placements and times
  Duration shortest;  // the shortest iteration; equal to `longest` if the first was already steady
  Duration longest;
  Duration pinning;  // one-time cost of the pinned host pool, not part of any iteration
  // The plan of the policy, from `Preparation::plan` or `Policy::ExportPlan`; empty if it has none.
  std::string plan;

  bool fits() const { return !out_of_memory.has_value(); }
};

// Returns max(l_i) of the trace: the largest sum, over the ops, of the distinct storages that one
// op uses, each rounded up to `alignment`, plus all parameters and optimizer state. The idea is
// from SuperNeurons, section 3; parameters are added because they stay on the device. Parameters
// for which `outside` returns true count only in the ops that use them.
Bytes LayerBound(const Trace& trace, const Liveness& liveness, Bytes alignment,
                 const std::function<bool(TensorId)>& outside = {});
Bytes LayerBound(const Trace& trace, Bytes alignment);

// Returns the memory that lies `percent` percent of the way from `floor` to `peak`, rounded up to
// `alignment`.
Bytes MemoryAt(double percent, Bytes floor, Bytes peak, Bytes alignment);

// Returns the metrics of a run's logs. REQUIRES: the logs are complete (`report.fits()`).
Metrics ComputeMetrics(const Report& report);

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_REPORT_H_
