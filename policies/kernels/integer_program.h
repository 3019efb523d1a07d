// Integer programs, solved by CBC.

#ifndef SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_
#define SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace spillway {

// The least cost of variables that are 0 at least, some of them integers, under rows of bounds on
// weighted sums. Entries stand by variable.
struct IntegerProgram {
  std::vector<int> starts;  // of each variable's entries, and the end of the last's
  std::vector<int> rows;
  std::vector<double> factors;
  std::vector<double> most, costs;  // by variable
  std::vector<bool> integer;
  std::vector<double> row_least, row_most;
};

// The best values that are found, in at most so many nodes of the search if that is said; empty if
// there are none. Safe to use from several threads, but one solves at a time: CBC reads its
// settings through strings that are shared by all of its models. REQUIRES: a build with
// SPILLWAY_HAVE_CBC.
std::vector<double> SolveByCbc(const IntegerProgram& program,
                               std::optional<int64_t> nodes = std::nullopt);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_KERNELS_INTEGER_PROGRAM_H_
