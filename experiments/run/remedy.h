// Predicts how long an iteration takes with a remedy. A remedy is a change to a run that may remove
// one of its waits, or one decision of its policy. The whole run is simulated anew, so that waits
// that the remedy causes count.

#ifndef SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_
#define SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "experiments/run/prepared.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway::lab {

enum class RemedyKind : uint8_t {
  kStartEarlier,  // the copy of `tensor` in `direction` starts at the launch of `op`
  kMoreMemory,    // the run has `memory` more bytes of device memory
  kFasterLink,    // copies in `direction` run at the rate `link`
  kNoFence,       // fences after the op before `op`, and before `op`, are left out
  kFasterHost,    // the host takes `host` times as long to issue commands
  kKeep,          // `tensor` stays on the device; offloading or evicting it returns false
};
std::string_view Name(RemedyKind kind);

// One remedy. Fields that the comment on its kind does not name have no meaning.
struct StallRemedy {
  RemedyKind kind = RemedyKind::kMoreMemory;
  OpId op{};
  TensorId tensor{};
  Direction direction = Direction::kToDevice;
  Bytes memory = {};
  Bandwidth link = {};
  double host = 0;
};

// A function that simulates the iteration with a remedy and returns how long it takes, or nullopt
// if the run does not fit with the remedy.
using RemedyTrial = std::function<std::optional<Duration>(const StallRemedy&)>;

// Returns the predicted time of the iteration with the remedy, or nullopt if the run does not fit.
// `Decide` makes all choices of `asked` and `draft` anew. Throws the errors of `Run`.
std::optional<Duration> SimulateRemedy(const Case& asked, const Draft& draft,
                                       const StallRemedy& remedy);

// The time of an iteration on the fastest and on the slowest host that was measured.
struct HostRange {
  Duration fastest, slowest;
};

// Returns the range of a run, by `SimulateRemedy`; nullopt if the host's times are measured or
// given, or if the run does not fit.
std::optional<HostRange> HostRangeOf(const Case& asked, const Draft& draft);
// Returns the range of a run that had the outcome. If it had a plan, that stays.
std::optional<HostRange> HostRangeOf(const Case& asked, const Inputs& inputs,
                                     const Outcome& outcome);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_
