// Times of operators at shapes that were never measured, from operators that were.
//
// An operator table is a trace that was recorded on a GPU, with the times of its ops. The time of
// another op is the time of the roofline on that GPU times a correction: measured time divided by
// the roofline's, for measured ops with the same name, arithmetic and, if there are any, types of
// the operands. The correction is their trend, a polynomial in the sizes, and the nearest ops'
// distance from it. Ops are near if their attributes and traffic differ by small factors.

#ifndef SPILLWAY_SIM_COST_OPERATOR_TABLE_H_
#define SPILLWAY_SIM_COST_OPERATOR_TABLE_H_

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/device.h"
#include "sim/cost/quadratic_fit.h"
#include "sim/cost/roofline.h"
#include "traces/trace.h"

namespace spillway::sim {

class OperatorTable {
 public:
  // `gpu` is the device on which `measured` was recorded. REQUIRES: `measured` has a recording.
  OperatorTable(const Trace& measured, const Device& gpu);

  // Returns the trace, which was recorded without a GPU, as if it had been recorded on the table's.
  // An op that the table does not know has the roofline's time. Safe to call from several threads.
  Trace Timed(Trace trace) const;

  // Returns the trace as `Timed`, but ops of kinds that this table lacks have the times of `other`,
  // scaled by the rooflines of the two GPUs.
  Trace TimedOver(const OperatorTable& other, Trace trace) const;

  const Device& gpu() const { return gpu_; }

 private:
  using Point = QuadraticFit::Point;  // log2 of sizes, by name
  struct Entry {
    Point at;
    double correction = 0;  // natural logarithm of the measured time over the roofline's
    double workspace = 0;   // bytes per byte of traffic
  };

  static Point PointOf(const Op& op);
  double RooflineSeconds(const Op& op) const;
  Duration TimeOf(const Op& op, const std::optional<Entry>& near) const;
  // Returns the entry that stands for an op, or nullopt if the table has none of its kind.
  std::optional<Entry> Near(const std::string& kind, const Point& here) const;
  // Returns the trend of the corrections of a kind in the table. REQUIRES: `mutex_` is held.
  const QuadraticFit& TrendOf(const std::string& kind) const;
  // Returns `Near` for the op, which is computed once for equal ops.
  std::optional<Entry> EntryFor(const Trace& trace, const Op& op) const;

  const Device gpu_;
  const std::string gpu_name_;  // as its driver calls it
  const RooflineCostModel roofline_;
  std::map<std::string, std::vector<Entry>> entries_;  // by kind, with types and without
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::string, Point>, std::optional<Entry>> known_;
  mutable std::map<std::string, QuadraticFit> trends_;  // by kind
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_OPERATOR_TABLE_H_
