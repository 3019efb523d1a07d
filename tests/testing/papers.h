// Short calls for tests that reproduce numbers printed in the papers.

#ifndef SPILLWAY_TESTS_TESTING_PAPERS_H_
#define SPILLWAY_TESTS_TESTING_PAPERS_H_

#include <string>
#include <vector>

#include "experiments/papers/reproduce.h"
#include "tests/testing/files.h"

namespace spillway::testing {

inline PaperValues Printed() {
  return ReadPaperValues(InSource("experiments/papers/paper-values.csv"));
}

inline std::vector<PaperItem> Select(const std::string& request) {
  return SelectItems(Printed(), request);
}

// Reproduces the first item that the request selects. REQUIRES: the request names an item.
inline Reproduction ReproduceOne(const std::string& item) { return Reproduce(Select(item).at(0)); }

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_PAPERS_H_
