// A backend executes commands; it does not manage memory and makes no decisions.
//
// The runtime issues kernels and copies in program order, each with the events it must wait for.
// Commands of one stream run in the order issued; commands of different streams are ordered by
// their waits alone. Implementations: `SimBackend` (predicts times), and real executors on a CPU or
// a GPU.

#ifndef SPILLWAY_SIM_CORE_BACKEND_H_
#define SPILLWAY_SIM_CORE_BACKEND_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/core/allocator.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

// The kernels', and a pair for the copies of each pool outside the device, the host's first.
enum class Stream : uint8_t { kCompute, kToDevice, kToHost };
inline constexpr size_t kStreamCount = 1 + 2 * kMaxPools;

constexpr size_t Index(Stream stream) { return static_cast<size_t>(stream); }
constexpr Stream StreamOf(PoolId pool, Direction direction) {
  const size_t first = 1 + 2 * NumberOf(pool);
  return static_cast<Stream>(direction == Direction::kToDevice ? first : first + 1);
}
static_assert(StreamOf(PoolId::kHost, Direction::kToHost) == Stream::kToHost);
// The pool whose copies run on the stream; the device for kernels.
constexpr PoolId PoolOf(Stream stream) { return static_cast<PoolId>((Index(stream) + 1) / 2); }
// "compute", "h2d", "d2h"; of other pools "in2", "out2" and so on.
std::string_view Name(Stream stream);

// The completion of one command: the `sequence`-th on its stream since the iteration began, from 1.
// A zero sequence is an event that has always happened.
struct Event {
  Stream stream = Stream::kCompute;
  uint32_t sequence = 0;

  explicit operator bool() const { return sequence != 0; }
  bool operator==(const Event&) const = default;
};

// Why a command waits; the stalls of a report are broken down by it.
enum class WaitCause : uint8_t {
  kFetch,   // its own input is still on its way to the device
  kFence,   // the policy asked for it
  kMemory,  // the memory it writes is still in use by an earlier owner
  kSource,  // a copy whose source is not written yet
};

struct Wait {
  Event event;
  WaitCause cause = WaitCause::kMemory;
};

// One part of a slot's work: kernel `kernel` of `CostModel::Kernels(op, slot, batch)` on `batch`
// samples. The runs of a slot follow each other and their batches add up to the op's batch.
struct KernelRun {
  uint32_t slot = 0;
  uint32_t kernel = 0;
  int64_t batch = 0;

  bool operator==(const KernelRun&) const = default;
};

// One op to execute. The spans live until the call returns.
struct Launch {
  OpId op{};  // of the trace that the backend was made for
  OpType type = OpType::kOther;
  bool recompute = false;
  std::span<const KernelRun> runs;
  std::span<const Block> inputs;   // where each of op.inputs lies, in its order
  std::span<const Block> outputs;  // likewise
  std::span<const Block> scratch;  // likewise
  Block workspace;                 // size 0 if none is needed
  Duration time;                   // of `runs`, by the cost model, behind what ran before
  Duration gap;                    // that the device takes besides
  std::optional<Duration> host{};  // what the host takes until it has launched it, where recorded
  Bytes traffic;                   // the op's least device-memory traffic
};

// When one command ran, in time since the iteration began.
struct Interval {
  Duration issued;  // the host had enqueued it
  Duration start;
  Duration end;
  bool operator==(const Interval&) const = default;
};

// The intervals of each stream's commands, in issue order: entry i belongs to sequence i + 1.
using StreamTimes = std::array<std::vector<Interval>, kStreamCount>;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view Name() const = 0;

  // Issues one op on the compute stream.
  virtual Event Enqueue(const Launch& launch, std::span<const Wait> waits) = 0;

  // Issues a copy between a device range and a range of a pool outside of the same size, `size`
  // bytes of them, on the pool's stream.
  virtual Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
                     Bytes size, std::span<const Wait> waits) = 0;

  // Returns when everything issued has completed.
  virtual void Synchronize() = 0;

  // The times of all commands since the last call; the next command starts a new iteration at time
  // 0 with sequence 1. REQUIRES: called after `Synchronize`.
  virtual StreamTimes TakeTimeline() = 0;

  // A block was taken from or given back to the device allocator. For allocators that go to the
  // driver each time (`Backing::kBlocks`), a backend performs or charges the call here.
  virtual void OnAllocate(const Block&) {}
  virtual void OnFree(const Block&) {}

  // The device allocator has made a call of the driver, before `OnAllocate` or after `OnFree` of
  // the block that it was made for.
  virtual void OnDriverCall(const DriverCall&) {}

  // What a range holds has been given up by the commands issued so far, without a block going back
  // to the device allocator: a tensor or workspace has left a reserved block, or a copy outside was
  // dropped. A backend that executes may overwrite it once those commands have run.
  virtual void OnAbandon(const Block&, PoolId) {}

  // A storage has taken a block of a pool outside, where its contents will be copied to.
  virtual void OnOutsideBlock(TensorId, const Block&, PoolId) {}

  // The contents of a tensor arrive, in a block on the device or in a pool outside: inputs before
  // each iteration, parameters and optimizer state before the first. Nothing issued is pending.
  virtual void OnArrive(TensorId, const Block&, PoolId) {}
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_BACKEND_H_
