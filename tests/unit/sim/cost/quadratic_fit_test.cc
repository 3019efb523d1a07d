#include "sim/cost/quadratic_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace spillway::testing {
namespace {

using Point = QuadraticFit::Point;

double Polynomial(double x, double y) { return 3 + 2 * x - y + 0.5 * x * y + 0.25 * y * y; }

// Fits the polynomial at 30 x 30 points, where the ridge hardly counts.
QuadraticFit Fitted() {
  std::vector<Point> points;
  for (int x = 0; x < 30; ++x) {
    for (int y = 0; y < 30; ++y) points.push_back({{"x", x}, {"y", y}, {"constant", 7}});
  }
  std::vector<std::pair<const Point*, double>> samples;
  for (const Point& point : points) {
    samples.emplace_back(&point, Polynomial(point.at("x"), point.at("y")));
  }
  return QuadraticFit(samples);
}

TEST(QuadraticFitTest, FindsAPolynomial) {
  const QuadraticFit fit = Fitted();
  for (const auto& [x, y] : {std::pair(4.5, 20.0), {20.0, 4.5}, {15.0, 15.0}}) {
    EXPECT_NEAR(fit({{"x", x}, {"y", y}}), Polynomial(x, y), 0.02 * Polynomial(x, y)) << x << y;
  }
}

TEST(QuadraticFitTest, AMissingVariableIsZero) {
  const QuadraticFit fit = Fitted();
  EXPECT_DOUBLE_EQ(fit({{"x", 4}}), fit({{"x", 4}, {"y", 0}, {"other", 9}}));
}

// 30 numbers have a mean of 14.5 and a standard deviation of 8.7.
TEST(QuadraticFitTest, StaysWhereItIsFarFromTheSamples) {
  const QuadraticFit fit = Fitted();
  EXPECT_DOUBLE_EQ(fit({{"x", 14.5 + 27}, {"y", 3}}), fit({{"x", 1000}, {"y", 3}}));
  EXPECT_NE(fit({{"x", 14.5 + 25}, {"y", 3}}), fit({{"x", 1000}, {"y", 3}}));
}

TEST(QuadraticFitTest, FewSamplesGiveALine) {
  const std::vector<Point> points{{{"x", 1}}, {{"x", 2}}, {{"x", 4}}};
  const QuadraticFit fit({{&points[0], 1}, {&points[1], 4}, {&points[2], 16}});
  EXPECT_NEAR(fit({{"x", 3}}) - fit({{"x", 2}}), fit({{"x", 2}}) - fit({{"x", 1}}), 1e-9);
}

TEST(QuadraticFitTest, OneSampleIsAConstant) {
  const Point point{{"x", 4}};
  EXPECT_DOUBLE_EQ(QuadraticFit({{&point, 2.5}})({{"x", 90}}), 2.5);
}

}  // namespace
}  // namespace spillway::testing
