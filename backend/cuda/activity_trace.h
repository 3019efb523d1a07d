// When the GPU really ran kernels and copies, as CUPTI reports it: what each began and ended with,
// without the gaps that events around it include.
//
// The library is loaded at run time, so that nothing needs CUPTI but who asks for it.

#ifndef SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_
#define SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "traces/base/units.h"

namespace spillway {

class ActivityTrace {
 public:
  struct Interval {
    Duration start, end;  // since the first command's first kernel or copy began
  };

  // Throws `EnvironmentError` if CUPTI is missing, here or when this was built. REQUIRES: no other
  // object of this class is alive.
  ActivityTrace();
  ~ActivityTrace();
  ActivityTrace(const ActivityTrace&) = delete;
  ActivityTrace& operator=(const ActivityTrace&) = delete;

  // From here on kernels, copies and fills are recorded.
  void Start();

  // What this thread launches from here to `EndCommand` belongs to command `id`.
  void BeginCommand(uint64_t id);
  void EndCommand();

  // Ends the recording and returns, of each command that ran something, the time from its first
  // kernel or copy to its last. REQUIRES: the device has nothing left to do.
  std::map<uint64_t, Interval> Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway

#endif  // SPILLWAY_BACKEND_CUDA_ACTIVITY_TRACE_H_
