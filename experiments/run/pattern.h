// The grammar of options and arguments that take several values.
//
// Commas separate values. A part of the form key=value belongs to the specification before it, so
// that "a,b:x=1,y=2,c" has the values "a", "b:x=1,y=2" and "c"; after a specification without
// parameters, a comma reads as the colon does. Commas within brackets do not separate.
//
// Braces stand for alternatives, for example in "resnet(3,4,{4..36..4},3):32". They enclose values
// by the same rules. FIRST..LAST and FIRST..LAST..STEP are ranges of whole numbers; a range
// includes LAST if a step ends there. A value may contain braces. The alternatives of the last
// braces vary fastest.
//
// A text that is the path of a file is one value.

#ifndef SPILLWAY_EXPERIMENTS_RUN_PATTERN_H_
#define SPILLWAY_EXPERIMENTS_RUN_PATTERN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::lab {

// Returns the values of the texts in their order, with braces as they are. Throws `UsageError` if
// there is nothing before, between or after commas. An empty text is an empty value.
std::vector<std::string> SplitSpecifications(const std::vector<std::string>& texts);

// Returns the values of the texts with the alternatives of braces in their place. Throws the errors
// of `SplitSpecifications` and `Pattern`, and `UsageError` if there are more than a million values.
std::vector<std::string> ExpandSpecifications(const std::vector<std::string>& texts);

// Returns true iff the text begins with the key of a parameter: "key=".
bool IsParameter(std::string_view text);

// A pattern is a text with braces. Its memory grows with the sum of the numbers of alternatives,
// not with their product.
class Pattern {
 public:
  // Throws `UsageError` if braces are empty or not closed, a range is invalid, one place has more
  // than a million alternatives, or the pattern stands for more than 2^40 texts.
  explicit Pattern(std::string_view text);
  // Returns a pattern that stands for the text alone.
  static Pattern Literal(std::string text);

  // Returns the number of texts.
  uint64_t size() const { return size_; }
  // Returns text i. REQUIRES: i < size().
  std::string at(uint64_t i) const;

 private:
  Pattern() = default;

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

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_PATTERN_H_
