// The commands of an iteration, held until all are known.
//
// What issues them meanwhile takes its time between two commands: decisions, the books of the
// memory. The GPU would wait for it, and a schedule that is known beforehand has no part of it.

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

namespace spillway {

class HeldCommands {
 public:
  // As `Backend::Enqueue` and `Backend::Copy`.
  Event Enqueue(const Launch& launch, std::span<const Wait> waits) {
    Held& held = Add(waits);
    held.launch = launch;
    held.runs.assign(launch.runs.begin(), launch.runs.end());
    held.inputs.assign(launch.inputs.begin(), launch.inputs.end());
    held.outputs.assign(launch.outputs.begin(), launch.outputs.end());
    held.scratch.assign(launch.scratch.begin(), launch.scratch.end());
    return Next(Stream::kCompute);
  }
  Event Copy(PoolId pool, Direction direction, const Block& device, const Block& outside,
             Bytes size, std::span<const Wait> waits) {
    Add(waits).copy = {pool, direction, device, outside, size};
    return Next(StreamOf(pool, direction));
  }

  // Gives them to another backend's methods of the same names, in their order. Those return the
  // events that were promised.
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
  // Sequences begin again.
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
    std::optional<HeldCopy> copy;  // else a launch
    Launch launch;                 // whose spans are those below
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

  std::deque<Held> commands_;  // the first `count_`; others are kept for their memory
  size_t count_ = 0;
  std::array<uint32_t, kStreamCount> sequences_{};  // of the latest command
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_COMMON_HELD_COMMANDS_H_
