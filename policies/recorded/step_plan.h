// A plan that the executor of a recorded program carries out in the program's own steps.
//
// It gives a fate and positions to storages that autograd saves. A position is the number of hooks
// of autograd that ran before (`Trace::hooks`). Storages that the plan does not name are kept.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_PLAN_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_PLAN_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/report.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

// The places of a recorded step at which storages can move, and the storages that backward reads.
class StepPlaces {
 public:
  // REQUIRES: the trace has hooks. The trace and its liveness outlive the object.
  StepPlaces(const Trace& trace, const Liveness& liveness);

  // One time that backward reads a storage.
  struct Read {
    OpId taken{};  // the op before which backward takes it
    OpId last{};   // the last op that uses it then
  };
  // The times that a storage has in a step. Only storages that autograd saved, and that backward
  // reads, have some.
  struct Times {
    TensorId storage{};
    OpId packed{};            // the op before which autograd saves it
    OpId left{};              // the last op that uses it before backward reads it
    std::vector<Read> reads;  // at least one
  };
  const std::vector<Times>& storages() const { return storages_; }  // by `packed`
  // The optimizer state that the program can keep on the host, in the order of its updates. It is
  // used by updates alone.
  const std::vector<TensorId>& state() const { return state_; }

  // Return the last place with hooks that is not behind the op, or the first one that is not before
  // it; nullopt if there is none. The op behind a place names the place; for a place at the end,
  // this is one more than the last op.
  std::optional<size_t> LastBefore(size_t op) const;
  std::optional<size_t> FirstFrom(size_t op) const;
  Bytes SizeOf(TensorId storage) const { return trace_.tensor(storage).size; }
  // Returns the position of the last hook at a place.
  int64_t PositionAt(size_t place) const;
  // Returns the op behind the hook at a position; nullopt if there is no such position.
  std::optional<size_t> OpBehind(int64_t position) const;

 private:
  const Trace& trace_;
  std::vector<Times> storages_;
  std::vector<TensorId> state_;
  std::vector<size_t> places_;      // ascending
  std::vector<int64_t> positions_;  // by place: the position of its last hook
};

// What happens to a storage.
enum class StepFate : uint8_t {
  kKeep,
  kOffload,  // copied to the host where autograd saves it
  kEvict,    // recomputed where backward reads it
};

// The kinds of moves that a plan names the ops of, before which they are.
enum class StepMove : uint8_t {
  // The step waits for the copy, and gives the storage up. Without it, the storage stays until
  // backward has read it. There is one at most.
  kRelease,
  kPrefetch,  // a copy back starts; without it, backward waits for the copy
  // Backward takes the storage, or another one that is recomputed from it, and then gives this one
  // up again.
  kDrop,
};
// How files have these moves, in their order.
struct StepMoveKey {
  std::string_view key;
  bool list;       // or else a single position, which may lack
  bool offloaded;  // only for storages that are offloaded
  bool may_lack = false;
};
inline constexpr std::array<StepMoveKey, 3> kStepMoves{
    {{"release", false, true, true}, {"prefetches", true, true}, {"drops", true, false}}};

struct StepPlan {
  struct Storage {
    TensorId storage{};
    StepFate fate = StepFate::kOffload;
    std::array<std::vector<size_t>, kStepMoves.size()> moves{};  // by `StepMove`: ops, ascending

    std::vector<size_t>& At(StepMove move) { return moves[static_cast<size_t>(move)]; }
    const std::vector<size_t>& At(StepMove move) const { return moves[static_cast<size_t>(move)]; }
    bool operator==(const Storage&) const = default;
  };
  std::vector<Storage> storages;  // by `Times::packed`
  std::vector<TensorId> state{};  // on the host but while an update uses it, by the updates

  bool IsEmpty() const { return storages.empty() && state.empty(); }
  bool operator==(const StepPlan&) const = default;
};

// Returns the plan that carries out the decisions of a run of the trace in `memory` bytes, as far
// as the program can. REQUIRES: the run fits.
StepPlan PlanFrom(const Report& report, const StepPlaces& places, Bytes memory);

// Returns by op the most bytes of the device that are taken while it is prepared and issued. Ops at
// the end that take and give nothing are left out.
std::vector<Bytes> UsedBytes(const Report& report);

// The predicted memory and time of a step under a plan and of the step without one (`eager`).
struct StepPrediction {
  Bytes peak, eager_peak;  // the most bytes allocated at once
  Duration step, eager_step;
  Duration
      host;  // at least this part of `step` goes by until the host has started operators and copies
  Duration forward;  // the part of `host` until forward ends
  Duration update;   // the part of `step` behind the last op that is no update
};

// Returns the plan as a JSON document (experiments/schemas/step-plan.json). `policy` has decided.
std::string FormatStepPlan(const StepPlan& plan, const Trace& trace, const StepPlaces& places,
                           Bytes memory, std::string_view policy, const StepPrediction& prediction);

// Reads such a document; `origin` is its path in messages. Throws `InputError` with the place of
// the error if the document is malformed, or names a tensor or position that the trace lacks.
StepPlan ParseStepPlan(std::string_view text, const std::string& origin, const Trace& trace,
                       const StepPlaces& places);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_PLAN_H_
