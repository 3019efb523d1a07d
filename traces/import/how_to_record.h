// The lines of Python that record a step for an import, for messages about files that lack a part.

#ifndef SPILLWAY_TRACES_IMPORT_HOW_TO_RECORD_H_
#define SPILLWAY_TRACES_IMPORT_HOW_TO_RECORD_H_

#include <string_view>

namespace spillway::traces {

inline constexpr std::string_view kHowToRecord = R"(
Both files must be recorded during the same step, with PyTorch 2.4 or later:
  from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
  observer = ExecutionTraceObserver().register_callback("et.json")
  with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True,
               record_shapes=True, execution_trace_observer=observer) as p: step()
  p.export_chrome_trace("kineto.json"))";

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_HOW_TO_RECORD_H_
