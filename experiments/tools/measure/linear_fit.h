// Least-squares fits of y = intercept + slope * x where errors are relative to y and neither
// coefficient is negative: the laws of copies and driver calls.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_

#include <cstddef>
#include <span>
#include <string_view>

namespace spillway {

struct Point {
  double x = 0;
  double y = 0;
};

struct LinearFit {
  double intercept = 0;
  double slope = 0;
  // |fit - y| / y over all points, also those that the fit gave little weight.
  double mean_error = 0;
  double max_error = 0;
  size_t points = 0;

  double At(double x) const { return intercept + slope * x; }
};

// Minimises the Huber loss of (fit - y) / y, so that small values count as much as large ones and a
// few outliers hardly count. A coefficient that would be negative is 0. `what` names the data in
// messages. Throws `InputError` unless there are at least three points with two distinct x, and all
// are finite, with x >= 0 and y > 0.
LinearFit FitLine(std::span<const Point> points, std::string_view what);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_MEASURE_LINEAR_FIT_H_
