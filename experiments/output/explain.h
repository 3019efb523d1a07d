// Says why an iteration was slower than its kernels: each wait of the compute stream, what it was
// for, and what would have removed it.
//
// A pure function of a trace and a report's logs. The stalls are those of `Metrics::stalls`, one by
// one: their lengths add up to the same picosecond. A suggestion is what the logs say about this
// stall with everything else unchanged; a policy that follows it may meet the next obstacle.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/output/run_result.h"
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

enum class SuggestionKind : uint8_t {
  kStartEarlier,  // `earlier`, `op`: start the copy so much earlier, at or before that op
  kMoreMemory,    // `memory`: with so much more device memory there would be nothing to wait for
  kFasterLink,    // `link`: at this rate the copy would have ended in time
  kNoFence,       // `earlier`: the fence alone costs this much here
  kFasterHost,    // `earlier`: the host would have to issue the op so much earlier
};
std::string_view Name(SuggestionKind kind);

struct Suggestion {
  SuggestionKind kind = SuggestionKind::kStartEarlier;
  bool suffices = true;  // it removes the whole stall
  Duration earlier = {};
  std::optional<OpId> op = {};
  Bytes memory = {};
  Bandwidth link = {};
  std::string text = {};  // one sentence for people
};

struct StallExplanation {
  StallCause cause = StallCause::kFetch;
  std::optional<size_t> command;  // the kernel that waited, in Report::timeline; none for the drain
  std::optional<size_t> awaited;  // what it waited for, likewise; none where the host was late
  OpId op{};                      // the op that waited; the last op for the drain
  Duration since;
  Duration length;
  std::string waited_for;  // "prefetch of x (10 MiB, issued at b2, 1.2 ms)"
  std::string why_late;    // a sentence on what held that command up; may be empty
  std::vector<Suggestion> suggestions;
};

// All stalls, longest first; of equal ones the earliest first. REQUIRES: the logs are complete
// (`report.fits()`) and belong to `trace`.
std::vector<StallExplanation> ExplainStalls(const Trace& trace, const Report& report);

// The longest stalls for people, at most `limit` of them, and a line on the others.
std::string FormatExplanation(const Trace& trace, const Report& report,
                              const std::vector<StallExplanation>& stalls, size_t limit);

// One row per stall.
std::string FormatExplanationCsv(const Trace& trace, const Report& report,
                                 const std::vector<StallExplanation>& stalls);

// {"schema": "spillway.explain/v1", "row": the result, "stalls": [rows, each with its
// "suggestions"]}. A run that does not fit has no stalls.
std::string FormatExplanationJson(const Trace& trace, const Report& report, const RunResult& result,
                                  const std::vector<StallExplanation>& stalls);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_EXPLAIN_H_
