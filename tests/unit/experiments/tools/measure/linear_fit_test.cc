#include "experiments/tools/measure/linear_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/testing/files.h"

namespace spillway::testing {
namespace {

using ::spillway::testing::InputErrorOf;
using ::testing::HasSubstr;

// Returns points of x = bytes, in powers of two from 4 KiB to 1 GiB, and y = seconds on the line.
std::vector<Point> Line(double intercept, double slope) {
  std::vector<Point> points;
  for (double x = 4096; x <= 1 << 30; x *= 2) points.push_back({x, intercept + slope * x});
  return points;
}

TEST(LinearFitTest, IsExactWithoutNoise) {
  const LinearFit fit = FitLine(Line(3.2e-6, 1 / 55.4e9), "copies");
  EXPECT_NEAR(fit.intercept, 3.2e-6, 3.2e-15);
  EXPECT_NEAR(fit.slope * 55.4e9, 1, 1e-9);
  EXPECT_LT(fit.max_error, 1e-9);
  EXPECT_EQ(fit.points, 19u);
  EXPECT_NEAR(fit.At(1e6), 3.2e-6 + 1e6 / 55.4e9, 1e-13);
}

// The fit weighs relative errors. With absolute errors, noise of large copies, which take 1000
// times as long, would hide the latency.
TEST(LinearFitTest, NoiseMovesBothCoefficientsLittle) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(1, 0.02);
  std::vector<Point> points = Line(3e-6, 2e-11);
  for (Point& point : points) point.y *= noise(random);
  const LinearFit fit = FitLine(points, "copies");
  EXPECT_NEAR(fit.intercept / 3e-6, 1, 0.03);
  EXPECT_NEAR(fit.slope / 2e-11, 1, 0.03);
  EXPECT_GT(fit.max_error, fit.mean_error);
  EXPECT_LT(fit.max_error, 0.08);
}

TEST(LinearFitTest, OutliersHardlyCountButAreReported) {
  std::vector<Point> points = Line(3e-6, 2e-11);
  points[2].y *= 10;
  points[9].y *= 3;
  points[17].y *= 5;
  const LinearFit exact = FitLine(points, "copies");
  EXPECT_NEAR(exact.intercept / 3e-6, 1, 1e-6);
  EXPECT_NEAR(exact.slope / 2e-11, 1, 1e-6);
  EXPECT_NEAR(exact.max_error, 0.9, 1e-6);

  std::mt19937 random(1);
  std::normal_distribution<double> noise(1, 0.02);
  for (Point& point : points) point.y *= noise(random);
  const LinearFit fit = FitLine(points, "copies");
  EXPECT_NEAR(fit.intercept / 3e-6, 1, 0.05);
  EXPECT_NEAR(fit.slope / 2e-11, 1, 0.05);
}

TEST(LinearFitTest, CoefficientsAreNotNegative) {
  const std::vector<Point> curved{{1, 0.9}, {2, 2.0}, {3, 3.1}, {4, 4.2}};
  const LinearFit through_zero = FitLine(curved, "x");
  EXPECT_EQ(through_zero.intercept, 0);
  EXPECT_NEAR(through_zero.slope, 1, 0.15);
  const std::vector<Point> falling{{1, 1.2}, {2, 1.1}, {3, 1.0}, {4, 0.9}};
  const LinearFit constant = FitLine(falling, "x");
  EXPECT_EQ(constant.slope, 0);
  EXPECT_NEAR(constant.intercept, 1.05, 0.1);
  EXPECT_NEAR(FitLine(std::vector<Point>{{0, 2}, {1, 2}, {2, 2}}, "x").slope, 0, 1e-12);
}

TEST(LinearFitTest, RefusesWhatCannotBeFitted) {
  const auto error = [](std::vector<Point> points) {
    return InputErrorOf([&] { FitLine(points, "cudaMalloc"); });
  };
  EXPECT_EQ(error({}), "cannot fit cudaMalloc: 0 points, at least 3 are needed");
  EXPECT_EQ(error({{1, 1}, {2, 2}}), "cannot fit cudaMalloc: 2 points, at least 3 are needed");
  EXPECT_EQ(error({{5, 1}, {5, 2}, {5, 3}}), "cannot fit cudaMalloc: all points are at 5");
  EXPECT_EQ(error({{1, 1}, {2, 0}, {3, 1}}),
            "cannot fit cudaMalloc: the point (2, 0) is out of range");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Point bad : {Point{-1, 1}, Point{kNan, 1}, Point{1, kNan}, Point{kInfinity, 1},
                          Point{1, kInfinity}, Point{1, -1}}) {
    EXPECT_THAT(error({{1, 1}, {2, 2}, {3, 3}, bad}), HasSubstr("out of range"));
  }
}

}  // namespace
}  // namespace spillway::testing
