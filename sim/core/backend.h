// A backend executes commands. It does not manage memory and makes no decisions.
//
// The runtime issues kernels and copies in program order, each with the events that it must wait
// for. Commands of one stream run in the order in which they were issued. Commands of different
// streams are ordered only by their waits. `SimBackend` predicts times; other implementations
// execute on a CPU or a GPU.

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

namespace spillway::sim {

// A queue of commands. There is one stream for the kernels of lane 0, two for the copies of each
// pool outside the device, one per direction, and one for the kernels of each other lane. Of the
// copies' streams, those of the host pool come first.
enum class Stream : uint8_t { kCompute, kToDevice, kToHost, kLane1 = 1 + 2 * kMaxPools };
inline constexpr size_t kStreamCount = static_cast<size_t>(Stream::kLane1) + kMaxLanes - 1;

constexpr size_t Index(Stream stream) { return static_cast<size_t>(stream); }
constexpr Stream StreamOf(PoolId pool, Direction direction) {
  const size_t first = 1 + 2 * NumberOf(pool);
  return static_cast<Stream>(direction == Direction::kToDevice ? first : first + 1);
}
static_assert(StreamOf(PoolId::kHost, Direction::kToHost) == Stream::kToHost);
constexpr Stream StreamOfLane(size_t lane) {
  return lane == 0 ? Stream::kCompute : static_cast<Stream>(Index(Stream::kLane1) + lane - 1);
}
// Returns true for the stream of a lane other than lane 0.
constexpr bool IsLane(Stream stream) { return stream >= Stream::kLane1; }
// Returns the pool whose copies run on the stream; for the compute stream, the device. REQUIRES:
// the stream is not a lane's.
constexpr PoolId PoolOf(Stream stream) { return static_cast<PoolId>((Index(stream) + 1) / 2); }
// Returns "compute", "h2d" or "d2h"; for pools other than the host, "in2", "out2", "in3", "out3";
// for lanes, "lane1" and so on.
std::string_view Name(Stream stream);

// The completion of one command: number `sequence` on its stream, counted from 1 since the
// iteration began. An event with sequence 0 has always happened.
struct Event {
  Stream stream = Stream::kCompute;
  uint32_t sequence = 0;

  explicit operator bool() const { return sequence != 0; }
  bool operator==(const Event&) const = default;
};

// The reason for a wait. A report breaks its stalls down by it.
enum class WaitCause : uint8_t {
  kFetch,   // an input of the op is still on its way to the device, or being made on another lane
  kFence,   // the policy asked for a fence
  kMemory,  // the memory that the command writes is still in use by an earlier owner
  kSource,  // the source of the copy has not been written yet
  kLane,    // the program makes its stream wait for another one (`Op::after`)
};

struct Wait {
  Event event;
  WaitCause cause = WaitCause::kMemory;
};

// One part of a slot's work: kernel number `kernel` of `CostModel::Kernels(op, slot, batch)`, on
// `batch` samples. The runs of one slot are adjacent, and their batches add up to the op's batch.
struct KernelRun {
  uint32_t slot = 0;
  uint32_t kernel = 0;
  int64_t batch = 0;

  bool operator==(const KernelRun&) const = default;
};

// One op to execute. The spans live until the call returns.
struct Launch {
  OpId op{};  // in the trace that the backend was made for
  OpType type = OpType::kOther;
  bool recompute = false;
  std::span<const KernelRun> runs;
  std::span<const Block> inputs;   // the location of each of op.inputs, in the same order
  std::span<const Block> outputs;  // the location of each of op.outputs
  std::span<const Block> scratch;  // the location of each of op.scratch
  Block workspace;                 // size 0 if no workspace is needed
  Duration time;                   // the cost model's time of `runs`, given the run before
  Duration gap;                    // recorded device time in addition to `time`
  std::optional<Duration> host{};  // recorded host time until the op is launched, if known
  Bytes traffic;                   // the least device-memory traffic of the op
  Arithmetic arithmetic = Arithmetic::kFp32;  // of the op's matrix products
  uint8_t lane = 0;                           // as `Op::lane`
  bool collective = false;                    // it communicates with other GPUs
};

// The times of one command, measured from the beginning of the iteration.
struct Interval {
  Duration issued;  // the host has enqueued the command
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

  // Issues one op on the stream of its lane. Returns the event of its completion.
  virtual Event Enqueue(const Launch& launch, std::span<const Wait> waits) = 0;

  // Issues a copy of `size` bytes between the device range and the range of the same size in
  // `pool`, on the pool's stream for this direction. Returns the event of its completion.
  virtual Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
                     Bytes size, std::span<const Wait> waits) = 0;

  // Returns when every issued command has completed.
  virtual void Synchronize() = 0;

  // Returns the times of all commands since the last call. The next command starts a new iteration,
  // at time 0 and with sequence 1. REQUIRES: `Synchronize` was called after the last command.
  virtual StreamTimes TakeTimeline() = 0;

  // Called when a block was taken from or given back to the device allocator. For an allocator that
  // calls the driver for every block (`Backing::kBlocks`), a backend performs or charges the call
  // here.
  virtual void OnAllocate(const Block&) {}
  virtual void OnFree(const Block&) {}

  // Called when the device allocator has called the driver. A call made for an allocation is
  // reported before `OnAllocate`; a call made for a free is reported after `OnFree`.
  virtual void OnDriverCall(const DriverCall&) {}

  // Called when the host is busy for this long with something other than a command, such as a hook
  // of the recorded program.
  virtual void OnHostWork(Duration) {}

  // Called when the contents of a range are no longer needed once the commands issued so far have
  // run, although no block goes back to the device allocator. Either a tensor or workspace has left
  // a reserved block, or a copy outside was dropped. A backend that executes may overwrite the
  // range after these commands.
  virtual void OnAbandon(const Block&, PoolId) {}

  // Called when a storage has taken a block of a pool outside, to which its contents will be
  // copied.
  virtual void OnOutsideBlock(TensorId, const Block&, PoolId) {}

  // Called when the contents of a tensor arrive in a block on the device or in a pool outside: for
  // inputs before each iteration, for parameters and optimizer state before the first one. No
  // command is pending on the block.
  virtual void OnArrive(TensorId, const Block&, PoolId) {}
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_BACKEND_H_
