// Fits the laws of copies and driver calls: y = intercept + slope * x. Errors are relative to y,
// and neither coefficient is negative.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_

#include <cstddef>
#include <span>
#include <string_view>

namespace spillway::lab {

struct Point {
  double x = 0;
  double y = 0;
};

struct LinearFit {
  double intercept = 0;
  double slope = 0;
  // The relative errors |fit - y| / y, over all points including outliers.
  double mean_error = 0;
  double max_error = 0;
  size_t points = 0;

  double At(double x) const { return intercept + slope * x; }
};

// Returns the line that minimises the Huber loss of (fit - y) / y. Small values therefore count as
// much as large values, and outliers have little weight. A coefficient that would be negative is 0.
// `what` names the data in messages. Throws `InputError` unless there are at least three points and
// two distinct x, and every point is finite with x >= 0 and y > 0.
LinearFit FitLine(std::span<const Point> points, std::string_view what);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_
