// Says why an iteration was slower than its kernels: each wait of the compute stream, what it was
// for, and what would have made the iteration shorter.
//
// The stalls are those of `Metrics::stalls`, one by one, from the report's logs alone: their
// lengths add up to the same picosecond. From the logs follows, too, what might remove a stall with
// all else unchanged. But then another op may wait longer, so each such remedy is simulated, and
// only those that shorten the iteration are suggested.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/absence.h"
#include "experiments/output/run_result.h"
#include "experiments/run/remedy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// Why a copy was made: a verb of the policy, the runtime's fetch, or an input that arrives during
// the iteration.
enum class CopyReason : uint8_t { kOffload, kPrefetch, kFetch, kInput };
std::string_view Name(CopyReason reason);

// The reason of each command of the timeline; meaningless for kernels.
std::vector<CopyReason> CopyReasons(const Report& report);

enum class StallCause : uint8_t { kFetch, kFence, kMemory, kLaunch, kDrain };  // as in `Stalls`
std::string_view Name(StallCause cause);

struct Suggestion {
  StallRemedy remedy;
  Duration iteration;  // as simulated with the remedy
  Duration gain;       // by so much shorter than without, more than 0
  std::string text;    // "without the fence before f2: 30 ns per iteration, 20 ns less"
};

struct StallExplanation {
  StallCause cause = StallCause::kFetch;
  std::optional<size_t> command;  // the kernel that waited, in Report::timeline; none for the drain
  std::optional<size_t> awaited;  // what it waited for, likewise; none where the host was late
  OpId op{};                      // the op that waited; the last op for the drain
  Duration since;
  Duration length;
  std::string waited_for;               // "prefetch of x (10 MiB, issued at b2, 1.2 ms)"
  std::string why_late;                 // a sentence on what held that command up; may be empty
  std::vector<Suggestion> suggestions;  // the largest gain first
};

// All stalls, longest first; of equal ones the earliest first. What might remove one of the first
// `limit` is tried out by `simulate`, and suggested if the iteration is shorter with it. REQUIRES:
// the logs are complete (`report.fits()`) and belong to `trace`.
std::vector<StallExplanation> ExplainStalls(const Trace& trace, const Report& report,
                                            const RemedyTrial& simulate = {}, size_t limit = 0);

// The longest stalls for people, at most `limit` of them, and a line on the others.
std::string FormatExplanation(const Trace& trace, const Report& report,
                              const std::vector<StallExplanation>& stalls, size_t limit);

// One row per stall.
std::string FormatExplanationCsv(const Trace& trace, const Report& report,
                                 const std::vector<StallExplanation>& stalls);

// {"schema": "spillway.explain/v1", "row": the result, "stalls": [rows, each with its
// "suggestions"], "storages": [rows], "peak": {"op", "requested_bytes", "holders": [rows]}}. A run
// that does not fit has no stalls and no storages, and nothing at its peak.
std::string FormatExplanationJson(const Trace& trace, const Report& report, const RunResult& result,
                                  const std::vector<StallExplanation>& stalls,
                                  const std::vector<Absence>& absences);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
