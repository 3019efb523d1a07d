// Times of operators at shapes that were never measured, from operators that were.
//
// An operator table is a trace that was recorded on a GPU, with the times of its ops. The time of
// another op is the time of the roofline on that GPU times a correction: measured time divided by
// the roofline's, for the nearest measured ops with the same name and arithmetic. Ops are near if
// their attributes, operations and traffic differ by small factors.

#ifndef SPILLWAY_SIM_COST_OPERATOR_TABLE_H_
#define SPILLWAY_SIM_COST_OPERATOR_TABLE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/device.h"
#include "sim/cost/roofline.h"
#include "traces/trace.h"

namespace spillway {

class OperatorTable {
 public:
  // `gpu` is the device on which `measured` was recorded. REQUIRES: `measured` has a recording.
  OperatorTable(const Trace& measured, const Device& gpu);

  // Returns the trace, which was recorded without a GPU, as if it had been recorded on the table's.
  // An op that the table does not know has the roofline's time.
  Trace Timed(Trace trace) const;

 private:
  using Point = std::map<std::string, double, std::less<>>;  // log2 of sizes, by name
  struct Entry {
    Point at;
    double correction = 0;  // natural logarithm of the measured time over the roofline's
    double workspace = 0;   // bytes per byte of traffic
  };

  static Point PointOf(const Op& op);
  double RooflineSeconds(const Op& op) const;
  // Returns the entry that stands for the op, or nullopt if the table has none of its name.
  std::optional<Entry> Near(const Op& op) const;

  const RooflineCostModel roofline_;
  const Recording recording_;
  std::map<std::string, std::vector<Entry>> entries_;  // by name and arithmetic
};

}  // namespace spillway

#endif  // SPILLWAY_SIM_COST_OPERATOR_TABLE_H_
