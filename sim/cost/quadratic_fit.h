// A polynomial in several variables, fitted to samples by ridge regression: of second degree, or of
// first degree to fewer than 30 samples.

#ifndef SPILLWAY_SIM_COST_QUADRATIC_FIT_H_
#define SPILLWAY_SIM_COST_QUADRATIC_FIT_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::sim {

class QuadraticFit {
 public:
  using Point = std::map<std::string, double, std::less<>>;  // by variable; 0 if it is missing

  // `samples` are points and the function's values there. REQUIRES: there is at least one.
  explicit QuadraticFit(const std::vector<std::pair<const Point*, double>>& samples);

  // Beyond three standard deviations from the samples' mean, a variable counts as if it were there.
  double operator()(const Point& point) const;

 private:
  struct Variable {
    std::string name;
    double mean = 0;       // over the samples
    double deviation = 0;  // standard; above 0
  };

  // Returns 1, the variables in standard deviations from their means, and if `squares_` all
  // products of two.
  std::vector<double> TermsAt(const Point& point) const;

  std::vector<Variable> variables_;  // all that differ between samples
  std::vector<double> factors_;      // the factors of the terms
  bool squares_ = false;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_COST_QUADRATIC_FIT_H_
