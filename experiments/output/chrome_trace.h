// Writes a simulated iteration as a trace file in the Chrome/Perfetto JSON format, for
// ui.perfetto.dev.
//
// The process is the machine. Each thread is a stream (compute, h2d, d2h), whose commands never
// overlap. Kernels and copies are complete events ("X") with their details as arguments. Counters
// ("C") show the memory at the times of `MemoryTimeline`. Flows ("s", "f") lead from an offload to
// each copy that brings the tensor back, and from that copy to the kernel that reads the tensor.
// Times are microseconds with six decimals, which are exact picoseconds.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_

#include <optional>
#include <string>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// The origin of a trace file, which the file names.
struct ChromeTraceOrigin {
  std::string machine;  // names the process: "NVIDIA H200, PCIe 5 x16 (simulated)"
  std::string version;  // goes to "otherData", with all fields below
  std::string workload;
  std::string policy;
  std::string device;
  std::optional<Bytes> memory;  // nullopt: unlimited
  std::string cost;
  std::string run_sha256;
};

// Returns the trace file. Equal reports give equal bytes. `cost` is the model that the run used,
// which names the algorithms. REQUIRES: the logs are complete (`report.fits()`) and belong to
// `trace`.
std::string FormatChromeTrace(const Trace& trace, const Report& report, const CostModel& cost,
                              const ChromeTraceOrigin& origin);

// Returns the streams of a report: those of the kernels of lane 0 and of copies, and the lanes that
// it uses.
std::vector<Stream> StreamsOf(const Report& report);

// Returns a name of the stream for people: "h2d (copies to the device)".
std::string StreamName(Stream stream, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_CHROME_TRACE_H_
