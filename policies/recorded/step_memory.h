// The memory that a recorded step takes under given fates of its storages, without a run.
//
// It counts in moments. Each op has one in which it runs. An op before which backward takes
// storages has another one before it. Evicted storages are recomputed in that moment: the op's
// results and its workspace are not there yet, and what a chain of ops makes on the way is there
// only until the chain has read it.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_MEMORY_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_MEMORY_H_

#include <optional>
#include <span>
#include <vector>

#include "policies/recorded/step_plan.h"
#include "sim/core/cost_model.h"
#include "sim/core/policy.h"

namespace spillway::policies {

using StepFates = std::vector<StepFate>;   // by index in `StepMemory::movables`
using StepProfile = std::vector<int64_t>;  // bytes by moment

class StepMemory {
 public:
  // A storage that may move.
  struct Movable {
    const StepPlaces::Times* times = nullptr;
    int64_t size = 0;
    size_t begin = 0;            // the first op at which it is there
    std::optional<size_t> free;  // the first op before which it can be released
    Duration copy;               // of one copy
    bool offload = false, evict = false;
  };
  // The ops [from, to] at which a storage that is not kept has to be there.
  struct Need {
    size_t from = 0, to = 0;
    bool on_the_way = false;  // only for what is recomputed before the op `from`
  };
  using Needs = std::vector<std::vector<Need>>;  // by movable, ascending

  // REQUIRES: the trace has hooks, and the arguments outlive the object.
  StepMemory(const Trace& trace, const CostModel& cost, const StepPlaces& places);

  const Trace& trace() const { return trace_; }
  const StepPlaces& places() const { return places_; }
  const std::vector<Movable>& movables() const { return movables_; }
  // Returns the index of a storage in `movables`.
  std::optional<size_t> IndexOf(TensorId storage) const { return index_[Index(storage)]; }
  // Returns the sum of the times of all ops before this one, which may be one more than the last.
  Duration StartOf(size_t op) const { return starts_[op]; }
  Duration step() const { return starts_.back(); }

  // The moments of the ops [begin, end) are [FirstOf(begin), FirstOf(end)). An op runs in its last
  // moment.
  size_t FirstOf(size_t op) const { return first_[op]; }
  size_t LastOf(size_t op) const { return first_[op + 1] - 1; }
  size_t OpOf(size_t moment) const { return ops_[moment]; }
  // Adds bytes in all moments of the ops [begin, end).
  void Add(StepProfile& profile, size_t begin, size_t end, int64_t bytes) const;

  // Returns the first op at which a storage with this fate need not be there any more.
  size_t LeavesAt(size_t movable, StepFate fate) const;
  // What runs again for a movable.
  struct Chain {
    std::vector<OpId> ops;        // ascending, after `BytesOf`
    std::vector<TensorId> made;   // the storages that they make, the movable itself first
    std::vector<size_t> sources;  // the movables that they read, some of them repeatedly
    double seconds = 0;           // of the ops, or infinity if the movable cannot be recomputed
    std::vector<size_t> places;   // by tensor: its place in `made`, counted from 1, or 0
  };
  // Sets `chain` to what runs again before the op `at`, where a movable is recomputed. What is
  // evicted is there up to the ops `until`, by movable; without them, only when backward reads it.
  void FindChain(size_t movable, size_t at, const StepFates& fates, Chain& chain,
                 const std::vector<size_t>* until = nullptr) const;
  // Returns the most bytes of what a chain makes at once. `stays`, and the movable, stay after it.
  int64_t BytesOf(Chain& chain, std::span<const TensorId> stays = {}) const;

  // Returns when each storage that is not kept has to be there. What is offloaded also has to be
  // there for what is recomputed from it.
  Needs NeedsOf(const StepFates& fates) const;
  // Sorts needs, and joins those that overlap.
  static void Merge(std::vector<Need>& needs);
  // Returns the bytes if each storage that is not kept is there only when it has to be, and nothing
  // is recomputed on the way.
  StepProfile ProfileOf(const StepFates& fates, const Needs& needs) const;
  // Returns, by op, the most bytes of what is recomputed before it.
  std::vector<int64_t> RecomputedBefore(const StepFates& fates) const;
  // Returns these bytes for the evicted movables that are taken before the op, without `there`. It
  // uses the memory of `chain`.
  int64_t RecomputedBefore(size_t op, const StepFates& fates, std::span<const size_t> there,
                           Chain& chain) const;
  // The movables that backward takes before an op, and the number of the read.
  struct Taken {
    size_t movable, read;
  };
  const std::vector<Taken>& TakenBefore(size_t op) const { return taken_[op]; }

 private:
  // An op as a part of chains.
  struct Link {
    struct Input {
      TensorId storage{};
      std::optional<size_t> movable;
      size_t last = 0;  // the last op that uses it
    };
    bool recomputable = false;
    double seconds = 0;
    std::vector<Input> inputs;  // without parameters and optimizer state
  };

  void AddMoments();
  void AddLinks();
  void AddMovable(const StepPlaces::Times& times, const CostModel& cost);
  void AddFixed(TensorId id);

  const Trace& trace_;
  const Liveness liveness_;
  const StepPlaces& places_;
  std::vector<Movable> movables_;
  std::vector<std::optional<size_t>> index_;  // by tensor
  std::vector<std::vector<Taken>> taken_;     // by op
  std::vector<Link> links_;                   // by op
  std::vector<Duration> starts_;              // by op
  std::vector<size_t> first_;                 // by op
  std::vector<size_t> ops_;                   // by moment
  StepProfile fixed_;                         // what no plan moves
};

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_MEMORY_H_
