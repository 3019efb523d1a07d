#include "sim/core/policy.h"

#include "sim/core/report.h"

namespace spillway::sim {

Report TrialRun::operator()(Policy& policy, Bytes memory, const TrialOptions& options) const {
  return run_(policy, memory, options);
}

}  // namespace spillway::sim
