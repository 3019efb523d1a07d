// A `RunResult` holds the result of one run as plain values. `ResultColumns` is the table of their
// columns.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_RUN_RESULT_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_RUN_RESULT_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/output/ranking.h"
#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "experiments/run/remedy.h"
#include "experiments/run/run.h"
#include "sim/core/report.h"

namespace spillway::lab {

// The case of a row, with the values that its names stand for.
struct RowCase {
  RowCase() = default;
  // `trace` is the trace that ran.
  RowCase(const Case& asked, const Inputs& inputs, const Trace& trace);

  std::string workload, network, preset;
  int64_t batch = 0;
  bool training = true;
  std::string device;
  Bytes memory = {};
  std::string memory_request;  // the text of the request; empty: all memory of the device
  std::string cost;            // the source of kernel times
  std::string arithmetic;      // the times hold for matrix products in this arithmetic
  // The texts as given; empty: not given.
  std::string attention, optimizer, precision, accumulate, clip_norm, loss_chunks;
  std::string file;  // the trace file as given; empty for a network
  std::string policy;
};

// The result of one run.
struct RunResult : RowCase {
  std::string allocator, backend;
  Report report;            // without its logs
  Duration iteration = {};  // on a GPU the typical one: time stamps slow the one in the report
  Bytes floor = {}, in_core_peak = {};  // the memory of 0 % and of 100 %
  Duration ideal = {};                  // iteration of the ideal run (`Inputs::IdealOf`)
  std::optional<Duration> bound_joint;  // `JointBound`, if it holds for the run
  bool planned = false;                 // true if the run has a `Report::plan`
  Bytes pinned_peak = {};               // most pinned host memory, after compression
  Duration pinning = {};
  bool timed = true;  // false: the times are places in an order of execution

  bool compresses = false;  // true if the case asks for compression
  std::optional<CompressionSummary> compression;
  std::vector<std::string> offloaded;  // names of `compression->offloaded`

  bool executed = false;  // true if the run was on real bytes
  std::optional<double> loss;
  std::string weights_digest;     // may be empty
  std::string against;            // another policy that was executed too; empty: none was
  std::optional<bool> same_bits;  // loss and weights are equal; nullopt if a run does not fit

  // If the host's times were assumed, and the range was simulated (`HostRangeOf`).
  std::optional<HostRange> host_range;
  bool lacks_links = false;  // as `LacksLinks`

  // Memory in which the workload fits (`FindNeededMemory`), if it was searched for.
  std::optional<Bytes> needed;

  std::string failure;  // the error of a run that did not finish; then the report is empty

  // Returns the reason why the run does not fit, or the failure. REQUIRES: !fits().
  std::string Reason() const { return failure.empty() ? report.out_of_memory->Message() : failure; }
  bool fits() const { return failure.empty() && report.fits(); }
};

// Returns true iff the host takes at least 80 % of the iteration to issue its commands: it then
// limits parts of it or all. The package `spillway_torch` has the same limit.
bool IsHostBound(const Metrics& metrics);

// The part of the host in a run on a device.
struct HostPart {
  std::string device;
  std::string policy;  // if runs under several policies are told apart; else empty
  Metrics metrics;
  std::optional<HostRange> range;
  bool lacks_links = false;
};

// Returns true iff the trace has collectives, whose times on the device are not known.
bool LacksLinks(const Device& device, const Trace& trace);

// Returns sentences, broken at `width`, that say where a step is host-bound, the ranges of its
// time, and what its collectives take; an empty text if there is nothing to say.
std::string FormatHost(std::string_view whose, std::span<const HostPart> parts, size_t width);

// Returns the throughput, or nullopt if the iteration takes no time.
std::optional<double> SamplesPerSecond(int64_t batch, Duration iteration);

// Returns how much memory is missing: up to what is needed if that is known, else at least what the
// request that failed lacked, and up to the floor if it came before the first op. Returns nullopt
// if the result is not out of memory.
std::optional<Bytes> MissingOf(const RunResult& result);
// Returns the request, and the largest free block, in half a line: "conv1_2.bwd: the workspace
// needs 2.48 GiB, finds 2.27 GiB".
std::string Brief(const OutOfMemory& request);

// Returns the standing of a result by its time.
Standing StandingOfResult(const RunResult& result);

// kBound sets `bound_joint` in the result.
enum class Certificate : uint8_t { kNone, kBound };

// Returns the result of a run.
RunResult ResultOf(const Case& asked, const Inputs& inputs, const Outcome& outcome,
                   Certificate certificate = Certificate::kBound);

// Runs a case that is one row of several. An error becomes the `failure` of the result, so that the
// other rows still run. `look`, if given, is called with the outcome of a run that finished.
RunResult RunForRow(const Case& asked, const Inputs& inputs,
                    const std::function<void(const Outcome&)>& look = {},
                    Certificate certificate = Certificate::kBound,
                    const BackendFactories& backends = {});

// Sets `needed` of a result that is out of device memory. An error leaves it unset.
void FindNeed(const Case& asked, const Inputs& inputs, RunResult& result);

// The columns of results in Markdown and LaTeX.
inline constexpr std::string_view kUsualColumns[] = {"policy",          "status",
                                                     "iteration_ms",    "samples_per_second",
                                                     "slowdown",        "peak_allocated_bytes",
                                                     "offloaded_bytes", "stall_ms"};

// Returns the columns of `spillway run` and `compare`. experiments/schemas/results.json describes
// their rows.
Columns<RunResult> ResultColumns();

// Returns a table for people that compares policies, the fastest first: if they fit, times, memory,
// traffic, stalls by cause, and distance to the bounds. A `width` above 0 is that of a terminal:
// the table then has only the columns that fit the terminal. REQUIRES: there are results.
std::string FormatComparison(std::span<const RunResult> results, size_t width = 0);

// Returns a table for people with the bytes that each pool outside held and moved. Returns an empty
// text if no run that fits has a pool other than the host's.
std::string FormatPools(std::span<const RunResult> results, size_t width = 0);

// Returns a table for people with the memory that compression saves and the time that it takes.
// Returns an empty text if no run compresses.
std::string FormatCompression(std::span<const RunResult> results, size_t width = 0);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_RUN_RESULT_H_
