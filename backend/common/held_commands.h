// Holds the commands of an iteration until all of them are known.
//
// The runtime spends host time between two commands on decisions and on bookkeeping of memory. If
// it issued each command at once, the GPU would wait for the host. That time is no part of a
// schedule that is known beforehand, so the commands are held and then issued without it.

#ifndef SPILLWAY_BACKEND_COMMON_HELD_COMMANDS_H_
#define SPILLWAY_BACKEND_COMMON_HELD_COMMANDS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/backend.h"

namespace spillway::backend {

class HeldCommands {
 public:
  // Hold a command. Both functions have the contracts of `Backend::Enqueue` and `Backend::Copy`.
  // They return the event that the command will have once it is issued.
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) {
    Held& held = Add(waits);
    held.launch = launch;
    held.runs.assign(launch.runs.begin(), launch.runs.end());
    held.inputs.assign(launch.inputs.begin(), launch.inputs.end());
    held.outputs.assign(launch.outputs.begin(), launch.outputs.end());
    held.scratch.assign(launch.scratch.begin(), launch.scratch.end());
    return Next(StreamOfLane(launch.lane));
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) {
    Add(waits).copy = {pool, direction, device, outside, size};
    return Next(StreamOf(pool, direction));
  }

  // Passes the held commands, in the order held, to `enqueue` and `copy`, which forward them to the
  // methods of another backend. The other backend returns the events that this class has already
  // returned.
  template <typename Enqueue, typename Copy>
  void Release(const Enqueue& enqueue, const Copy& copy) {
    const size_t count = std::exchange(count_, 0);
    for (size_t i = 0; i < count; ++i) {
      Held& held = commands_[i];
      if (held.copy) {
        const HeldCopy& c = *held.copy;
        copy(c.pool, c.direction, c.device, c.outside, c.size, held.waits);
        continue;
      }
      held.launch.runs = held.runs;
      held.launch.inputs = held.inputs;
      held.launch.outputs = held.outputs;
      held.launch.scratch = held.scratch;
      enqueue(held.launch, held.waits);
    }
  }
  // Restarts the sequence numbers of all streams.
  void EndIteration() { sequences_ = {}; }

 private:
  struct HeldCopy {
    PoolId pool;
    Direction direction;
    Block device, outside;
    Bytes size;
  };
  struct Held {
    std::vector<Wait> waits;
    std::optional<HeldCopy> copy;  // nullopt if the command is a launch
    Launch launch;                 // its spans are set to the vectors below on release
    std::vector<KernelRun> runs;
    std::vector<Block> inputs, outputs, scratch;
  };

  Held& Add(std::span<const Wait> waits) {
    if (count_ == commands_.size()) commands_.emplace_back();
    Held& held = commands_[count_++];
    held.waits.assign(waits.begin(), waits.end());
    held.copy.reset();
    return held;
  }
  Event Next(Stream stream) { return {stream, ++sequences_[Index(stream)]}; }

  std::deque<Held> commands_;  // only the first `count_` are held; the rest keep their memory
  size_t count_ = 0;
  std::array<uint32_t, kStreamCount> sequences_{};  // by stream: its latest command's number
};

}  // namespace spillway::backend

#endif  // SPILLWAY_BACKEND_COMMON_HELD_COMMANDS_H_
