// Short calls for tests that reproduce numbers printed in the papers.

#ifndef SPILLWAY_TESTS_TESTING_PAPERS_H_
#define SPILLWAY_TESTS_TESTING_PAPERS_H_

#include <gtest/gtest.h>

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

// Returns the number of judged items of a request. Each judged item has to agree, which
// is checked.
inline int Judged(const std::string& request) {
  int judged = 0;
  for (const PaperItem& item : Select(request)) {
    const Reproduction result = Reproduce(item);
    EXPECT_TRUE(result.ours) << item.value.item;
    EXPECT_TRUE(result.passes || !result.judged)
        << item.value.item << ": " << result.ours_exact.value_or(0);
    judged += result.judged ? 1 : 0;
  }
  return judged;
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_PAPERS_H_
