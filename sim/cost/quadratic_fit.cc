#include "sim/cost/quadratic_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "traces/base/error.h"

namespace spillway {
namespace {

// The weight of the squares of factors against the squares of errors, in the sum that is minimised.
constexpr double kRidge = 3;

constexpr double kFarthest = 3;  // standard deviations

constexpr size_t kEnough = 30;  // samples for products of variables

double At(const QuadraticFit::Point& point, const std::string& name) {
  const auto found = point.find(name);
  return found == point.end() ? 0 : found->second;
}

// Solves a system of linear equations by Cholesky's decomposition. REQUIRES: the matrix, of which
// the lower triangle is read, is symmetric and positive definite.
std::vector<double> Solve(std::vector<std::vector<double>> matrix, std::vector<double> x) {
  const size_t size = x.size();
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double rest = matrix[i][j];
      for (size_t k = 0; k < j; ++k) rest -= matrix[i][k] * matrix[j][k];
      matrix[i][j] = i == j ? std::sqrt(rest) : rest / matrix[j][j];
    }
  }
  for (size_t i = 0; i < size; ++i) {
    for (size_t k = 0; k < i; ++k) x[i] -= matrix[i][k] * x[k];
    x[i] /= matrix[i][i];
  }
  for (size_t i = size; i-- > 0;) {
    for (size_t k = i + 1; k < size; ++k) x[i] -= matrix[k][i] * x[k];
    x[i] /= matrix[i][i];
  }
  return x;
}

}  // namespace

QuadraticFit::QuadraticFit(const std::vector<std::pair<const Point*, double>>& samples) {
  SPILLWAY_CHECK(!samples.empty());
  squares_ = samples.size() >= kEnough;
  std::set<std::string> names;
  for (const auto& [point, value] : samples) {
    for (const auto& [name, size] : *point) names.insert(name);
  }
  const auto count = static_cast<double>(samples.size());
  for (const std::string& name : names) {
    double mean = 0, variance = 0;
    for (const auto& [point, value] : samples) mean += At(*point, name) / count;
    for (const auto& [point, value] : samples) {
      variance += (At(*point, name) - mean) * (At(*point, name) - mean) / count;
    }
    if (variance > 1e-12) variables_.push_back({name, mean, std::sqrt(variance)});
  }
  const size_t size = TermsAt({}).size();
  std::vector<std::vector<double>> products(size, std::vector<double>(size));
  factors_.assign(size, 0);
  for (const auto& [point, value] : samples) {
    const std::vector<double> terms = TermsAt(*point);
    for (size_t i = 0; i < size; ++i) {
      factors_[i] += terms[i] * value;
      for (size_t j = 0; j <= i; ++j) products[i][j] += terms[i] * terms[j];
    }
  }
  for (size_t i = 1; i < size; ++i) products[i][i] += kRidge;
  factors_ = Solve(std::move(products), std::move(factors_));
}

std::vector<double> QuadraticFit::TermsAt(const Point& point) const {
  std::vector<double> terms{1};
  for (const Variable& variable : variables_) {
    const double away = (At(point, variable.name) - variable.mean) / variable.deviation;
    terms.push_back(std::clamp(away, -kFarthest, kFarthest));
  }
  for (size_t i = 1; squares_ && i <= variables_.size(); ++i) {
    for (size_t j = i; j <= variables_.size(); ++j) terms.push_back(terms[i] * terms[j]);
  }
  return terms;
}

double QuadraticFit::operator()(const Point& point) const {
  const std::vector<double> terms = TermsAt(point);
  double sum = 0;
  for (size_t i = 0; i < terms.size(); ++i) sum += factors_[i] * terms[i];
  return sum;
}

}  // namespace spillway
