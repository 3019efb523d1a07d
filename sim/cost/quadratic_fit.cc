#include "sim/cost/quadratic_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <set>

#include "traces/base/error.h"

namespace spillway::sim {
namespace {

// The weight of the squares of factors against the squares of errors, in the sum that is minimised.
constexpr double kRidge = 3;

constexpr double kFarthest = 3;  // standard deviations

constexpr size_t kEnough = 30;  // samples for products of variables

double At(const QuadraticFit::Point& point, const std::string& name) {
  const auto found = point.find(name);
  return found == point.end() ? 0 : found->second;
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
  const auto size = static_cast<Eigen::Index>(TermsAt({}).size());
  Eigen::MatrixXd products = Eigen::MatrixXd::Identity(size, size) * kRidge;
  products(0, 0) = 0;
  Eigen::VectorXd sums = Eigen::VectorXd::Zero(size);
  for (const auto& [point, value] : samples) {
    const std::vector<double> at = TermsAt(*point);
    const Eigen::Map<const Eigen::VectorXd> terms(at.data(), size);
    sums += terms * value;
    products += terms * terms.transpose();
  }
  const Eigen::VectorXd solution = products.llt().solve(sums);
  factors_.assign(solution.begin(), solution.end());
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

}  // namespace spillway::sim
