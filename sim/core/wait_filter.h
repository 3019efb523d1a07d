// Which waits between queues of commands are left to make: each queue is in order, so that of
// several waits for one the newest says all, and what a queue has waited for need not be said
// again.

#ifndef SPILLWAY_SIM_CORE_WAIT_FILTER_H_
#define SPILLWAY_SIM_CORE_WAIT_FILTER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway {

template <size_t kQueues>
class WaitFilter {
 public:
  // One command's waits: the newest of each queue, by sequence from 1; 0 where there is none.
  class Newest {
   public:
    void Add(size_t queue, uint32_t sequence) {
      sequences_[queue] = std::max(sequences_[queue], sequence);
    }

   private:
    friend class WaitFilter;
    std::array<uint32_t, kQueues> sequences_{};
  };

  // The next command of `waiting` has these waits: calls use(queue, sequence) for those that are
  // left, in the order of the queues.
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

  // Sequences begin again.
  void Clear() { known_ = {}; }

 private:
  std::array<std::array<uint32_t, kQueues>, kQueues> known_{};  // by waiting and awaited queue
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_CORE_WAIT_FILTER_H_
