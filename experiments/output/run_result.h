// What one run comes to, as plain values, and the table of its columns.

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
#include "experiments/run/scenario.h"
#include "experiments/run/setup.h"
#include "sim/core/report.h"

namespace spillway {

// What was run.
struct RunFacts {
  std::string workload, network, preset;
  int64_t batch = 0;
  bool training = true;
  std::string device;
  Bytes memory = {};
  std::string cost;  // where kernel times come from
  std::string policy;
};

RunFacts FactsOf(const Setup& setup, const Trace& trace, std::string_view policy);

struct RunResult : RunFacts {
  std::string allocator, backend;
  Report report;            // without its logs
  Duration iteration = {};  // on a GPU: typical, as the one in the report is slowed by time stamps
  std::string memory_request;
  Bytes floor = {}, in_core_peak = {};  // 0 % and 100 % of a percentage
  Duration ideal = {};                  // of `SimulateIdeal`
  std::optional<Duration> bound_joint;  // `JointBound`, where it holds of the run
  bool planned = false;                 // the run has a `Report::plan`
  Bytes pinned_peak = {};               // of the host, with compression if there is any
  Duration pinning = {};
  bool timed = true;  // false: places in an order of execution take the place of times

  bool compresses = false;  // where the setup asks for it
  std::optional<CompressionSummary> compression;
  std::vector<std::string> offloaded;  // names of `compression->offloaded`

  bool executed = false;  // on real bytes
  std::optional<double> loss;
  std::string weights_digest;     // may be empty
  std::string against;            // another policy that was executed as well; empty: none was
  std::optional<bool> same_bits;  // whether loss and weights are equal; nullopt if one does not fit

  std::string failure;  // of a policy that did not finish its run; the report is empty then

  // Why it does not fit, or the failure. REQUIRES: !fits().
  std::string Reason() const { return failure.empty() ? report.out_of_memory->Message() : failure; }
  bool fits() const { return failure.empty() && report.fits(); }
};

// Whether the result is to have its `bound_joint`.
enum class Certificate : uint8_t { kNone, kBound };

RunResult ResultOf(const Scenario& scenario, const std::string& policy, const Outcome& outcome,
                   Certificate certificate = Certificate::kBound);

// Of one run of several: an error of the policy ends in the result and leaves the others alone.
// `look` may see the outcome of a run that came to its end.
RunResult PlayForRow(const Scenario& scenario, const std::string& policy,
                     const std::function<void(const Outcome&)>& look = {},
                     Certificate certificate = Certificate::kBound,
                     const BackendFactories& backends = {});

// Of `spillway run` and `compare`; experiments/schemas/results.json describes their rows.
Columns<RunResult> ResultColumns();

// The comparison of policies for people: times, memory, traffic, stalls by cause, distance to the
// bounds. With a width it is for a terminal of that many columns, and shows only what fits; empty
// if nothing does.
std::string FormatComparison(std::span<const RunResult> results, size_t width = 0);

// What each pool outside held and moved, likewise; empty where there is the host alone.
std::string FormatPools(std::span<const RunResult> results);

// What compression saves and costs, likewise; empty for runs without it.
std::string FormatCompression(std::span<const RunResult> results);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_RUN_RESULT_H_
