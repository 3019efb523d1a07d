// When the storages of a recorded step leave and come back, if it is decided which of them do.

#ifndef SPILLWAY_POLICIES_RECORDED_STEP_SCHEDULE_H_
#define SPILLWAY_POLICIES_RECORDED_STEP_SCHEDULE_H_

#include "policies/recorded/step_guess.h"
#include "policies/recorded/step_memory.h"
#include "policies/recorded/step_plan.h"

namespace spillway::policies {

// Returns the plan of the fates, and sets `guess` to the bytes that it is expected to take.
// Storages stay longer, and come back earlier, than they have to, where there is room.
StepPlan SchedulePlan(const StepMemory& memory, const StepDraft& draft, int64_t budget,
                      StepProfile& guess);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_RECORDED_STEP_SCHEDULE_H_
