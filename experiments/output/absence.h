// Explains each absence of a storage from the device: when it leaves and returns, how it comes
// back, and how long the iteration would take if only this storage stayed.
//
// The absences follow from the report's logs, for every policy. Their benefit does not: keeping a
// storage may cost nothing, or may push out other storages. So the run that keeps it is simulated.

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

namespace spillway::lab {

// The way in which a storage comes back to the device.
enum class WayBack : uint8_t {
  kPrefetch,   // by a copy that the policy asked for
  kFetch,      // by a copy that the runtime made when an op needed the storage
  kRecompute,  // by ops that ran again
};
std::string_view Name(WayBack way);

// A storage that leaves the device and comes back during the iteration.
struct Absence {
  TensorId storage{};
  Bytes size;
  int64_t times = 0;  // number of times that the storage left
  OpId left{};        // the op at which it left first
  OpId returned{};    // the op at which it had a block again after leaving first
  WayBack way = WayBack::kRecompute;
  OpId needed{};                         // the first op from `returned` on that uses it
  std::optional<OpId> copied = {};       // the op at which its first copy out was issued, if any
  Duration copy_time = {};               // total time of its copies, in both directions
  Duration recompute_time = {};          // total time of the ops that wrote it again
  bool simulated = false;                // true if `if_kept` is known
  std::optional<Duration> if_kept = {};  // iteration if it stays; nullopt: the run does not fit
};

// Returns the storages that leave and come back, the largest first. Storages of equal size are in
// the order in which they leave. For each of the first `limit` storages, `simulate` predicts the
// iteration if that storage stays. REQUIRES: the logs are complete (`report.fits()`) and belong to
// `trace`.
std::vector<Absence> ExplainAbsences(const Trace& trace, const Report& report,
                                     const RemedyTrial& simulate = {}, size_t limit = 0);

// Returns the first `limit` absences as a table for people, with a line that counts the other
// absences. Returns an empty text if there are no absences.
std::string FormatAbsences(const Trace& trace, const Report& report,
                           const std::vector<Absence>& absences, size_t limit);

// Returns the columns of absences in JSON. REQUIRES: trace and report outlive the columns.
Columns<Absence> AbsenceColumns(const Trace& trace, const Report& report);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_ABSENCE_H_
