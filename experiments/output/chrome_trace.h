// A simulated iteration as a trace file of the Chrome/Perfetto JSON format, to look at in
// ui.perfetto.dev.
//
// One process is the machine; one thread is a stream (compute, h2d, d2h), whose commands never
// overlap. Kernels and copies are complete events ("X") with their details as arguments; memory is
// drawn by counters ("C") at the times of `MemoryTimeline`; flows ("s", "f") lead from an offload
// to each copy that brings the tensor back, and from that copy to the kernel that reads it. Times
// are microseconds with six decimals: exact picoseconds.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_

#include <optional>
#include <string>

#include "sim/core/cost_model.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// What the file says about its origin.
struct ChromeTraceOrigin {
  std::string machine;  // names the process: "NVIDIA H200, PCIe 5 x16 (simulated)"
  std::string version;  // this and what follows goes to "otherData"
  std::string workload;
  std::string policy;
  std::string device;
  std::optional<Bytes> memory;  // nullopt: unlimited
  std::string cost;
  std::string run_sha256;
};

// The document. The same report gives the same bytes. `cost` is the model that the run used; it
// names the algorithms. REQUIRES: the logs are complete (`report.fits()`) and belong to `trace`.
std::string FormatChromeTrace(const Trace& trace, const Report& report, const CostModel& cost,
                              const ChromeTraceOrigin& origin);

// "h2d (copies to the device)".
std::string StreamName(Stream stream, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_
