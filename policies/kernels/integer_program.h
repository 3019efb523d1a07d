// Integer programs, solved by CBC.

#ifndef SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_
#define SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace spillway::policies {

// An integer program: variables of the least cost, each at least 0 and some declared to be
// integers. Each row bounds a weighted sum of the variables. The matrix is stored by variable.
struct IntegerProgram {
  std::vector<int> starts;  // where the entries of each variable begin, and where the last end
  std::vector<int> rows;
  std::vector<double> factors;
  std::vector<double> most, costs;  // by variable
  std::vector<bool> integer;
  std::vector<double> row_least, row_most;
};

// Returns the best values found, or empty if none were found. The search visits at most `nodes`
// nodes; nullopt sets no limit. Several threads may call this, but only one thread solves at a
// time, because all models of CBC share the strings through which CBC reads its settings. REQUIRES:
// a build with SPILLWAY_HAVE_CBC.
std::vector<double> SolveByCbc(const IntegerProgram& program,
                               std::optional<int64_t> nodes = std::nullopt);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_
