#include "experiments/output/absence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

bool IsTaken(PlacementKind kind) {
  return kind == PlacementKind::kAllocate || kind == PlacementKind::kEnter;
}

// Returns the op at which a storage that left at the op `left` had a block again, or nullopt if it
// did not return. `placements` are its placements on the device.
std::optional<OpId> FindReturn(std::span<const Placement* const> placements, OpId left) {
  for (size_t i = 0; i + 1 < placements.size(); ++i) {
    const bool leaves = !IsTaken(placements[i]->kind) && placements[i]->op == left;
    if (leaves && IsTaken(placements[i + 1]->kind)) return placements[i + 1]->op;
  }
  return std::nullopt;
}

// Returns the absences in the order in which the storages leave. Their times are not set.
std::vector<Absence> FindAbsences(const Trace& trace, const Report& report,
                                  const Liveness& liveness) {
  std::map<TensorId, std::vector<const Placement*>> placements;
  for (const Placement& placement : report.placements) {
    if (!placement.on_device() || placement.tensor == kNoTensor) continue;
    placements[placement.tensor].push_back(&placement);
  }
  std::vector<Absence> absences;
  std::map<TensorId, size_t> known;  // in `absences`
  std::map<TensorId, OpId> copied;
  for (const Decision& decision : report.decisions) {
    const TensorId id = decision.tensor;
    if (!decision.done) continue;
    if (decision.verb == Verb::kOffload) copied.emplace(id, decision.op);
    const bool leaves = decision.verb == Verb::kRelease || decision.verb == Verb::kEvict;
    if (const auto found = known.find(id); found != known.end()) {
      Absence& absence = absences[found->second];
      if (leaves) ++absence.times;
      if (absence.times > 1 || decision.op != absence.returned) continue;
      if (decision.verb == Verb::kPrefetch) absence.way = WayBack::kPrefetch;
      if (decision.verb == Verb::kFetch) absence.way = WayBack::kFetch;
    } else if (leaves) {
      const std::optional<OpId> returned = FindReturn(placements[id], decision.op);
      if (!returned) continue;  // the storage was written back for the next iteration
      known.emplace(id, absences.size());
      const auto uses = liveness.Uses(id);
      const auto next = std::ranges::lower_bound(uses, *returned);
      absences.push_back({.storage = id,
                          .size = trace.tensor(id).size,
                          .times = 1,
                          .left = decision.op,
                          .returned = *returned,
                          .needed = next == uses.end() ? *returned : *next});
      if (const auto copy = copied.find(id); copy != copied.end()) {
        absences.back().copied = copy->second;
      }
    }
  }
  return absences;
}

void AddTimes(const Trace& trace, const Report& report, const Liveness& liveness,
              std::vector<Absence>& absences) {
  std::map<TensorId, Absence*> known;
  for (Absence& absence : absences) known.emplace(absence.storage, &absence);
  for (const TimelineEntry& entry : report.timeline) {
    const Duration time = entry.interval.end - entry.interval.start;
    if (entry.kind != CommandKind::kKernel) {
      if (const auto found = known.find(entry.tensor); found != known.end()) {
        found->second->copy_time += time;
      }
    } else if (entry.recompute) {
      std::set<TensorId> written;
      for (const TensorId output : trace.op(entry.op).outputs) {
        written.insert(liveness.Root(output));
      }
      for (const TensorId id : written) {
        if (const auto found = known.find(id); found != known.end()) {
          found->second->recompute_time += time;
        }
      }
    }
  }
}

std::string FormatIfAny(Duration time) { return time == Duration() ? "-" : FormatDuration(time); }

std::string FormatKept(const Absence& absence, const Report& report) {
  if (!absence.simulated) return "-";
  if (!absence.if_kept) return "does not fit";
  const Duration iteration = report.metrics.iteration;
  const bool longer = *absence.if_kept >= iteration;
  return fmt::format(
      "{} ({}{})", FormatDuration(*absence.if_kept), longer ? '+' : '-',
      FormatDuration(longer ? *absence.if_kept - iteration : iteration - *absence.if_kept));
}

}  // namespace

std::string_view Name(WayBack way) {
  constexpr std::array<std::string_view, 3> kNames{"prefetch", "fetch", "recompute"};
  return kNames[static_cast<size_t>(way)];
}

std::vector<Absence> ExplainAbsences(const Trace& trace, const Report& report,
                                     const RemedyTrial& simulate, size_t limit) {
  SPILLWAY_CHECK(report.fits());
  const Liveness liveness(trace);
  std::vector<Absence> absences = FindAbsences(trace, report, liveness);
  AddTimes(trace, report, liveness, absences);
  std::ranges::stable_sort(absences, std::greater(), &Absence::size);
  for (size_t i = 0; i < std::min(limit, absences.size()); ++i) {
    absences[i].if_kept = simulate({.kind = RemedyKind::kKeep, .tensor = absences[i].storage});
    absences[i].simulated = true;
  }
  return absences;
}

std::string FormatAbsences(const Trace& trace, const Report& report,
                           const std::vector<Absence>& absences, size_t limit) {
  if (absences.empty()) return {};
  Bytes all;
  for (const Absence& absence : absences) all += absence.size;
  std::string text = fmt::format("\n{} storages leave the device and come back, {} in all:\n",
                                 absences.size(), FormatBytes(all));
  std::vector<std::vector<std::string>> cells{{"storage", "size", "copied at", "gone from",
                                               "back at", "by", "needed at", "times", "copies",
                                               "recomputed in", "if it stayed"}};
  for (size_t i = 0; i < std::min(limit, absences.size()); ++i) {
    const Absence& absence = absences[i];
    cells.push_back({trace.tensor(absence.storage).name, FormatBytes(absence.size),
                     absence.copied ? trace.op(*absence.copied).name : "-",
                     trace.op(absence.left).name, trace.op(absence.returned).name,
                     std::string(Name(absence.way)), trace.op(absence.needed).name,
                     std::to_string(absence.times), FormatIfAny(absence.copy_time),
                     FormatIfAny(absence.recompute_time), FormatKept(absence, report)});
  }
  text += FormatTable(cells);
  if (absences.size() > limit) {
    text += fmt::format("{} smaller ones; --format json lists all.\n", absences.size() - limit);
  }
  return text;
}

Columns<Absence> AbsenceColumns(const Trace& trace, const Report& report) {
  const auto name = [&trace](OpId Absence::*op) {
    return [&trace, op](const Absence& absence) { return trace.op(absence.*op).name; };
  };
  return {
      {"tensor", "", "the storage", [&](auto& a) { return trace.tensor(a.storage).name; }},
      {"bytes", "B", "its size", &Absence::size},
      {"times", "1", "how often it leaves", &Absence::times},
      {"copied_at", "", "the op at which its copy out was issued; null if there was none",
       [&](auto& a) { return a.copied ? std::optional(trace.op(*a.copied).name) : std::nullopt; }},
      {"left_at", "", "the op at which its block was given back first", name(&Absence::left)},
      {"returned_at", "", "the op at which it had a block again", name(&Absence::returned)},
      {"way_back", "", "prefetch, fetch or recompute", [](auto& a) { return Name(a.way); }},
      {"needed_at", "", "its first use from then on", name(&Absence::needed)},
      {"copy_ms", "ms", "its copies took, in both directions", &Absence::copy_time},
      {"recompute_ms", "ms", "the ops took that have written it again", &Absence::recompute_time},
      {"fits_if_kept", "", "whether the run fits if it alone stays; null if not simulated",
       [](auto& a) { return When(a.simulated, a.if_kept.has_value()); }},
      {"iteration_if_kept_ms", "ms", "the iteration then", &Absence::if_kept},
      {"cost_of_keeping_ms", "ms", "by so much longer",
       [&](auto& a) {
         return a.if_kept ? std::optional(*a.if_kept - report.metrics.iteration) : std::nullopt;
       }},
  };
}

}  // namespace spillway::lab
