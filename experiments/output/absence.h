// Says of each storage that leaves the device why: how long it is gone, how it comes back, and what
// the iteration would be if it alone had stayed.
//
// That a storage is gone follows from the report's logs, whoever decided it. What it is good for
// does not: keeping it may cost nothing, or push out others. So it is simulated.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_ABSENCE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_ABSENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/output/columns.h"
#include "experiments/run/remedy.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

enum class WayBack : uint8_t {
  kPrefetch,  // a copy, as the policy asked for
  kFetch,     // a copy, when an op needed it
  kRebuild,   // ops ran again
};
std::string_view Name(WayBack way);

struct Absence {
  TensorId storage{};
  Bytes size;
  int64_t times = 0;  // that it left
  OpId left{};        // the op at which it left first
  OpId returned{};    // at which it had a block again
  WayBack way = WayBack::kRebuild;
  OpId needed{};                    // its first use of the trace from then on
  std::optional<OpId> copied = {};  // at which its first copy out was issued; nullopt: none was
  Duration copy_time = {};          // of its copies, in both directions
  Duration rebuild_time = {};       // of the ops that have written it again
  bool simulated = false;           // whether the next is known
  std::optional<Duration> if_kept = {};  // the iteration; nullopt: it does not fit so
};

// The storages that leave and come back, the largest first; of equal ones in the order in which
// they leave. With one of the first `limit` kept the run is tried out by `simulate`. REQUIRES: the
// logs are complete (`report.fits()`) and belong to `trace`.
std::vector<Absence> ExplainAbsences(const Trace& trace, const Report& report,
                                     const RemedyTrial& simulate = {}, size_t limit = 0);

// The first `limit` for people, and a line on the others; empty if there is none.
std::string FormatAbsences(const Trace& trace, const Report& report,
                           const std::vector<Absence>& absences, size_t limit);

// Of the rows in JSON. Trace and report outlive them.
Columns<Absence> AbsenceColumns(const Trace& trace, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_ABSENCE_H_
