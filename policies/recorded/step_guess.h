// Guesses of which storages of a recorded step leave so that the step fits a budget.
//
// A guess knows sizes, the times of ops and of copies, and what trials of earlier guesses have
// shown; it makes no trial.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_GUESS_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_GUESS_H_

#include <limits>
#include <vector>

#include "policies/recorded/step_memory.h"

namespace spillway::policies {

// A guess takes a copy for the part `copy` of its time, because copies run beside ops, until all
// copies to the host take the part `link` of the step. From then on it takes a copy for many times
// its time. It takes a recomputation for `relied_on` times its time more for each storage that is
// recomputed from its result.
struct GuessPrices {
  double copy, link, relied_on;
};

// The decisions of a plan, and what trials have shown of it.
struct StepDraft {
  StepFates fates;
  StepProfile missed;          // the bytes that a trial took beyond `StepMemory::ProfileOf`
  std::vector<double> waited;  // by movable: seconds that ops of trials waited for its copies
};

inline constexpr size_t kNoMovable = std::numeric_limits<size_t>::max();

// Changes fates until the guess fits, and then keeps what there is room for. Neither changes the
// fate of the movable `locked`.
void FitFates(const StepMemory& memory, const GuessPrices& prices, int64_t budget, size_t locked,
              StepDraft& draft);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_GUESS_H_
