// Explains why an iteration took longer than its kernels. It lists each wait of the compute stream,
// the command that the stream waited for, and remedies that make the iteration shorter.
//
// The stalls are found in the report's logs. Their lengths add up exactly to `Metrics::stalls`. The
// logs also show which remedies might remove a stall. But a remedy may make another op wait longer,
// so each remedy is simulated, and only remedies that shorten the iteration are suggested.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/absence.h"
#include "experiments/output/run_result.h"
#include "experiments/output/view.h"
#include "experiments/run/remedy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway::lab {

// The reason of a copy: a verb of the policy (offload, prefetch), a fetch by the runtime, or an
// input that arrives during the iteration.
enum class CopyReason : uint8_t { kOffload, kPrefetch, kFetch, kInput };
std::string_view Name(CopyReason reason);

// Returns the reason of each command of the timeline. The entries of kernels have no meaning.
std::vector<CopyReason> CopyReasons(const Report& report);

// The causes are those of `Stalls`.
enum class StallCause : uint8_t { kFetch, kFence, kMemory, kLane, kLaunch, kDrain };
std::string_view Name(StallCause cause);

// A remedy that makes the iteration shorter.
struct Suggestion {
  StallRemedy remedy;
  Duration iteration;  // the iteration as simulated with the remedy
  Duration gain;       // the time that the remedy saves, more than 0
  std::string text;    // "without the fence before f2: 30 ns per iteration, 20 ns less"
};

// One wait of the compute stream.
struct StallExplanation {
  StallCause cause = StallCause::kFetch;
  std::optional<size_t> command;  // the kernel that waited, in Report::timeline; none for the drain
  std::optional<size_t> awaited;  // the command waited for, in Report::timeline; none for kLaunch
  OpId op{};                      // the op that waited; the last op for the drain
  Duration since;
  Duration length;
  std::string waited_for;               // "prefetch of x (10 MiB, issued at b2, 1.2 ms)"
  std::string why_late;                 // a sentence on what delayed that command; may be empty
  std::vector<Suggestion> suggestions;  // the largest gain first
};

// Returns all stalls, the longest first. Stalls of equal length are in the order of their times.
// For each of the first `limit` stalls, `simulate` predicts the iteration with each possible
// remedy, and remedies that shorten it are suggested. REQUIRES: the logs are complete
// (`report.fits()`) and belong to `trace`.
std::vector<StallExplanation> ExplainStalls(const Trace& trace, const Report& report,
                                            const RemedyTrial& simulate = {}, size_t limit = 0);

// Returns true iff the stalls last 1 % of the iteration or more together.
bool HasLongStalls(const Report& report);

// Returns a text for people about the `limit` longest stalls, with a line that counts the other
// stalls.
std::string FormatExplanation(const Trace& trace, const Report& report,
                              const std::vector<StallExplanation>& stalls, size_t limit);

// Returns one row per stall, as the view says; an empty text if that is the verb's own table.
std::string FormatStalls(const View& view, const Trace& trace, const Report& report,
                         const std::vector<StallExplanation>& stalls);

// The number of times in an iteration that a verb was refused for a reason.
struct RefusedVerb {
  Verb verb;
  Refusal refusal;
  int64_t count = 0;
};
// Returns the refused verbs in the order of `Verb`, then of `Refusal`.
std::vector<RefusedVerb> CountRefused(const Report& report);

// Returns a line for people with the refused verbs, or an empty text if there are none.
std::string FormatRefused(const Report& report);

// Returns the JSON document {"schema": "spillway.explain/v1", "row": the result, "stalls": [rows,
// each with its "suggestions"], "storages": [rows], "peak": {"op", "requested_bytes", "holders":
// [rows]}, "refused": [rows]}. A run that does not fit has no stalls, no storages and an empty
// peak.
std::string FormatExplanationJson(const Trace& trace, const Report& report, const RunResult& result,
                                  const std::vector<StallExplanation>& stalls,
                                  const std::vector<Absence>& absences);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
