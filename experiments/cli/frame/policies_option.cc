#include "experiments/cli/frame/policies_option.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>

#include "policies/registry.h"
#include "traces/base/params.h"

namespace spillway::cli {

void PoliciesOption::Add(Command& verb) {
  verb.Texts("--policy", given,
             "NAME or PLUGIN.so:NAME, then :key=value,...; or help; one or more (default: all of "
             "the mode but joint)")
      .NotEmpty("no policy is given");
  verb.Number("--jobs", jobs, {1, 1024},
              "Threads; any number gives the same output (default: one per core)");
}

std::vector<std::string> PoliciesOption::policies(std::string_view mode) const {
  return given.empty() ? AllPolicies(mode) : given;
}

void PoliciesOption::ForEach(size_t count, const std::function<void(size_t)>& work) const {
  tbb::task_arena arena(jobs > 0 ? jobs : tbb::task_arena::automatic);
  arena.execute([&] { tbb::parallel_for(size_t{0}, count, work); });
}

std::string_view ModeOf(const Case& asked) {
  return asked.training.value_or(true) ? "training" : "inference";
}

std::string_view ModeOf(std::span<const std::shared_ptr<const Trace>> traces) {
  const auto is_recorded = [](const auto& trace) { return trace->recording.has_value(); };
  const auto trains = [](const auto& trace) { return trace->training; };
  return std::ranges::all_of(traces, is_recorded) ? "recorded"
         : std::ranges::any_of(traces, trains)    ? "training"
                                                  : "inference";
}

std::vector<std::string> AllPolicies(std::string_view mode) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  std::vector<std::string> specifications;
  for (const PolicyRegistry::Entry& entry : registry.entries()) {
    if (!entry.traits.tried_by_default) continue;
    if (mode != "inference" && entry.traits.for_inference) continue;
    if (mode != "recorded" && entry.traits.for_recordings) continue;
    const std::vector<ParamInfo> params = registry.Parameters(entry.name);
    const bool has_algo =
        mode != "recorded" && std::any_of(params.begin(), params.end(), [](const ParamInfo& param) {
          return param.name == "algo" && param.initial != "auto";
        });
    if (has_algo) {
      specifications.push_back(entry.name + ":algo=memory");
      specifications.push_back(entry.name + ":algo=performance");
    } else {
      specifications.push_back(entry.name);
    }
  }
  return specifications;
}

}  // namespace spillway::cli
