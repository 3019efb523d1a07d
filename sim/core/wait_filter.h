// A filter that removes redundant waits between queues of commands. Each queue executes in order,
// so a command only needs the newest wait for each other queue, and a queue need not repeat a wait
// that it has already made.

#ifndef SPILLWAY_SIM_CORE_WAIT_FILTER_H_
#define SPILLWAY_SIM_CORE_WAIT_FILTER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "traces/base/namespaces.h"

namespace spillway::sim {

template <size_t kQueues>
class WaitFilter {
 public:
  // The waits of one command: for each queue the newest sequence, counted from 1; 0 if the command
  // does not wait for that queue.
  class Newest {
   public:
    void Add(size_t queue, uint32_t sequence) {
      sequences_[queue] = std::max(sequences_[queue], sequence);
    }

   private:
    friend class WaitFilter;
    std::array<uint32_t, kQueues> sequences_{};
  };

  // Takes the waits of the next command of queue `waiting`. Calls use(queue, sequence) for each
  // wait that is not redundant, in the order of the queues.
  template <typename Use>
  void Take(size_t waiting, const Newest& newest, const Use& use) {
    auto& known = known_[waiting];
    for (size_t queue = 0; queue < kQueues; ++queue) {
      const uint32_t sequence = newest.sequences_[queue];
      if (queue == waiting || sequence <= known[queue]) continue;
      known[queue] = sequence;
      use(queue, sequence);
    }
  }

  // Starts again: the next sequence of each queue is 1.
  void Clear() { known_ = {}; }

 private:
  std::array<std::array<uint32_t, kQueues>, kQueues> known_{};  // by waiting and awaited queue
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_CORE_WAIT_FILTER_H_
