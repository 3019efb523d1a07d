// Ops and tensors of a trace by name, and names of test cases.

#ifndef SPILLWAY_TESTS_TESTING_LOOKUP_H_
#define SPILLWAY_TESTS_TESTING_LOOKUP_H_

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/error.h"
#include "traces/trace.h"

namespace spillway::testing {

// Returns the op of this name. Throws `InputError` if there is none.
inline const Op& FindOp(const Trace& trace, std::string_view name) {
  const auto found = std::ranges::find(trace.ops, name, &Op::name);
  if (found == trace.ops.end()) throw InputError("no op " + std::string(name));
  return *found;
}

inline std::vector<std::string> Names(const Trace& trace, const std::vector<TensorId>& ids) {
  std::vector<std::string> names;
  for (const TensorId id : ids) names.push_back(trace.tensor(id).name);
  return names;
}

inline bool SameStorage(const Trace& trace, TensorId a, TensorId b) {
  return trace.Root(a) == trace.Root(b);
}

// Returns `text` with "_" for each character that the name of a test case may not have.
inline std::string CaseName(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return text;
}

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_LOOKUP_H_
