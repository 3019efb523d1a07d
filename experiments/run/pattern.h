// A pattern is a text with alternatives in braces. It stands for many texts, for example
// "resnet(3,4,{4..36..4},3):32".
//
// Braces enclose values separated by commas. FIRST..LAST and FIRST..LAST..STEP are ranges of whole
// numbers; a range includes LAST if a step ends there. A value may contain braces. Commas within
// other brackets do not separate values. The alternatives of the last braces vary fastest. The
// memory of a pattern grows with the sum of the numbers of alternatives, not with their product.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_PATTERN_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_PATTERN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

class Pattern {
 public:
  // Throws `UsageError` if braces are empty or not closed, a range is invalid, one place has more
  // than a million alternatives, or the pattern stands for more than 2^40 texts.
  explicit Pattern(std::string_view text);

  // Returns the number of texts.
  uint64_t size() const { return size_; }
  // Returns text i. REQUIRES: i < size().
  std::string at(uint64_t i) const;

 private:
  std::vector<std::string> between_;  // the texts before, between and behind the braces
  std::vector<std::vector<std::string>> alternatives_;
  uint64_t size_ = 1;
};

// A `Patterns` object is the concatenation of the texts of several patterns.
class Patterns {
 public:
  explicit Patterns(const std::vector<std::string>& texts);

  uint64_t size() const { return size_; }
  // REQUIRES: i < size().
  std::string at(uint64_t i) const;

 private:
  std::vector<Pattern> patterns_;
  uint64_t size_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_PATTERN_H_
