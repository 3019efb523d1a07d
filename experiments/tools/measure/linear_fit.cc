#include "experiments/tools/measure/linear_fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "traces/base/error.h"

namespace spillway::lab {
namespace {

constexpr size_t kLeastPoints = 3;
// P. Huber, "Robust Estimation of a Location Parameter", 1964: residuals up to 1.345 standard
// deviations count squared. 1.4826 makes a median of absolute values one standard deviation.
constexpr double kHuber = 1.345;
constexpr double kMedianToDeviation = 1.4826;
constexpr double kLeastDeviation = 1e-9;
constexpr int kIterations = 100;

void Validate(std::span<const Point> points, std::string_view what) {
  if (points.size() < kLeastPoints) {
    throw InputError(fmt::format("cannot fit {}: {} points, at least {} are needed", what,
                                 points.size(), kLeastPoints));
  }
  for (const Point& point : points) {
    if (!std::isfinite(point.x) || !std::isfinite(point.y) || point.x < 0 || point.y <= 0) {
      throw InputError(fmt::format("cannot fit {}: the point ({:g}, {:g}) is out of range", what,
                                   point.x, point.y));
    }
  }
  const auto [least, greatest] = std::minmax_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  if (least->x == greatest->x) {
    throw InputError(fmt::format("cannot fit {}: all points are at {:g}", what, least->x));
  }
}

double WeightedLoss(const Eigen::MatrixXd& rows, const Eigen::VectorXd& weights,
                    const Eigen::Vector2d& solution) {
  return (weights.array() * (rows * solution - Eigen::VectorXd::Ones(rows.rows())).array().square())
      .sum();
}

// Returns the solution without negative coefficients that minimises the sum of
// weight * (row * solution - 1)^2.
Eigen::Vector2d Solve(const Eigen::MatrixXd& rows, const Eigen::VectorXd& weights) {
  const Eigen::VectorXd roots = weights.cwiseSqrt();
  const Eigen::MatrixXd scaled = roots.asDiagonal() * rows;
  const Eigen::Vector2d free = scaled.colPivHouseholderQr().solve(roots);
  if ((free.array() >= 0).all()) return free;
  // The problem is convex, so one coefficient of the solution is 0.
  Eigen::Vector2d best = Eigen::Vector2d::Zero();
  double least = std::numeric_limits<double>::infinity();
  for (Eigen::Index i = 0; i < 2; ++i) {
    Eigen::Vector2d candidate = Eigen::Vector2d::Zero();
    candidate[i] = scaled.col(i).dot(roots) / scaled.col(i).squaredNorm();
    const double loss = WeightedLoss(rows, weights, candidate);
    if (loss < least) {
      least = loss;
      best = candidate;
    }
  }
  return best;
}

double Median(Eigen::VectorXd values) {
  std::sort(values.begin(), values.end());
  const Eigen::Index middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

LinearFit FitLine(std::span<const Point> points, std::string_view what) {
  Validate(points, what);
  const auto count = static_cast<Eigen::Index>(points.size());
  // Scaling x gives both columns a similar size, although x may be in bytes and y in seconds.
  double scale = 0;
  for (const Point& point : points) scale = std::max(scale, point.x);
  Eigen::MatrixXd rows(count, 2);
  for (Eigen::Index i = 0; i < count; ++i) {
    const Point& point = points[static_cast<size_t>(i)];
    rows(i, 0) = 1 / point.y;
    rows(i, 1) = point.x / scale / point.y;
  }
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(count);
  Eigen::Vector2d solution = Solve(rows, ones);
  Eigen::VectorXd errors = (rows * solution - ones).cwiseAbs();
  for (int i = 0; i < kIterations; ++i) {
    const double limit = kHuber * std::max(kMedianToDeviation * Median(errors), kLeastDeviation);
    const Eigen::VectorXd weights = (limit / errors.array().max(limit)).matrix();
    const Eigen::Vector2d next = Solve(rows, weights);
    const bool settled =
        (next - solution).cwiseAbs().maxCoeff() <= 1e-12 * solution.cwiseAbs().maxCoeff();
    solution = next;
    errors = (rows * solution - ones).cwiseAbs();
    if (settled) break;
  }
  return {solution[0], solution[1] / scale, errors.mean(), errors.maxCoeff(), points.size()};
}

}  // namespace spillway::lab
