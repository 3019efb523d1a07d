// The options for the policies of a verb that runs several.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_POLICIES_OPTION_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_POLICIES_OPTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/run/case.h"
#include "traces/trace.h"

namespace spillway::cli {

// Options for several policies: --policy --jobs.
struct PoliciesOption {
  std::vector<std::string> given;
  int jobs = 0;  // threads; 0: one per core

  void Add(Command& verb);
  // Returns the given policies, or all of the mode, as `ModeOf` names it, if none is given.
  std::vector<std::string> policies(std::string_view mode) const;
  // Calls `work` for each number below `count`, on as many threads as --jobs says.
  void ForEach(size_t count, const std::function<void(size_t)>& work) const;
};

// Returns "training" or "inference".
std::string_view ModeOf(const Case& asked);
// Returns "recorded" if all traces are recordings, "inference" if none trains, else "training".
std::string_view ModeOf(std::span<const std::shared_ptr<const Trace>> traces);

// Returns the specification of every built-in policy that does not decide by a plan. A policy whose
// parameter `algo` is not "auto" by default stands twice, with `algo=memory` and
// `algo=performance`, but once if the mode is "recorded": a recorded op has one kernel. Policies
// for inference are there if the mode is "inference", policies for recordings if it is "recorded".
std::vector<std::string> AllPolicies(std::string_view mode);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_POLICIES_OPTION_H_
