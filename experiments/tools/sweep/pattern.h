// A text with alternatives in braces, which stands for many texts: "resnet(3,4,{4..36..4},3):32".
//
// Between braces stand values separated by commas; FIRST..LAST and FIRST..LAST..STEP are whole
// numbers, the last included where a step ends there. A value may have braces of its own; commas
// within other brackets belong to it. The alternatives of the last braces vary fastest. What a
// pattern holds grows with the sum of its alternatives, not with their product.

#ifndef SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_PATTERN_H_
#define SPILLWAY_EXPERIMENTS_TOOLS_SWEEP_PATTERN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

class Pattern {
 public:
  // Throws `UsageError`: braces that are empty or open, a bad range, more than a million
  // alternatives in one place, or 2^40 texts.
  explicit Pattern(std::string_view text);

  uint64_t size() const { return size_; }
  // REQUIRES: i < size().
  std::string at(uint64_t i) const;

 private:
  std::vector<std::string> between_;  // before, between and behind the braces
  std::vector<std::vector<std::string>> alternatives_;
  uint64_t size_ = 1;
};

// Several patterns, one behind the other.
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
