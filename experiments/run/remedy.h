// A change to a run that may remove one of its waits, or one of its policy's decisions, and what
// becomes of the iteration with it: the whole run is simulated anew, so that the next obstacle
// counts.

#ifndef SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_
#define SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "experiments/run/resolve.h"
#include "experiments/run/setup.h"
#include "sim/core/cost_model.h"
#include "traces/base/units.h"
#include "traces/trace.h"

namespace spillway {

enum class RemedyKind : uint8_t {
  kStartEarlier,  // `tensor`, `direction`, `op`: the copy starts at that op's launch
  kMoreMemory,    // `memory`: so much more device memory
  kFasterLink,    // `direction`, `link`: copies in that direction at this rate
  kNoFence,       // `op`: fences since the op before it are left out
  kFasterHost,    // the host issues without taking time
  kKeep,          // `tensor`: it stays on the device; verbs that copy it out or drop it say false
};
std::string_view Name(RemedyKind kind);

// Fields that its kind does not name have no meaning.
struct StallRemedy {
  RemedyKind kind = RemedyKind::kMoreMemory;
  OpId op{};
  TensorId tensor{};
  Direction direction = Direction::kToDevice;
  Bytes memory = {};
  Bandwidth link = {};
};

// What the iteration takes with a remedy, by simulation; nullopt if it cannot run so.
using RemedyTrial = std::function<std::optional<Duration>(const StallRemedy&)>;

// The predicted iteration of the setup with the policy and the remedy; nullopt if it does not fit.
// The setup is resolved anew. Throws as `Play`.
std::optional<Duration> SimulateRemedy(const Setup& setup, const PolicyMaker& make,
                                       const StallRemedy& remedy);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_REMEDY_H_
