// Records when the GPU really ran kernels and copies, as CUPTI reports it. Each interval runs from
// the begin to the end of the work itself. Intervals between CUDA events also include gaps around
// the work.
//
// CUPTI is loaded at run time, so that only programs that use this class need it.

#ifndef SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_
#define SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "traces/base/units.h"

namespace spillway::cuda {

class ActivityTrace {
 public:
  struct Interval {
    Duration start, end;  // since the start of the first kernel or copy of any command
  };

  // Throws `EnvironmentError` if CUPTI is not installed, or was missing when this was built.
  // REQUIRES: no other object of this class is alive.
  ActivityTrace();
  ~ActivityTrace();
  ActivityTrace(const ActivityTrace&) = delete;
  ActivityTrace& operator=(const ActivityTrace&) = delete;

  // Starts to record kernels, copies and fills.
  void Start();

  // Everything that this thread launches between `BeginCommand` and `EndCommand` belongs to command
  // `id`.
  void BeginCommand(uint64_t id);
  void EndCommand();

  // Ends the recording. Returns, by id, the time from first kernel or copy to last of each command
  // that ran any. REQUIRES: the device is idle. Throws `Error` if CUPTI dropped records.
  std::map<uint64_t, Interval> Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::cuda

#endif  // SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_
