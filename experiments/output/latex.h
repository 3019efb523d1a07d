// Writes tables as LaTeX with the rules of the package booktabs.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_LATEX_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_LATEX_H_

#include <string>
#include <string_view>

#include "experiments/output/text_table.h"

namespace spillway::lab {

// Returns LaTeX that prints the text in any font encoding, with a space in place of each control
// character. Brackets and asterisks, which commands take as arguments, are in braces.
std::string EscapeLatex(std::string_view text);

// Returns the label of a table with that title: "tab:" and the title up to its first comma, in
// lower case, with one hyphen in place of each run of other characters than letters and digits.
std::string LatexLabel(std::string_view title);

// Returns a `table` environment with caption, label and `tabular`. Texts are aligned to the left,
// numbers to the right.
std::string FormatLatex(const TextTable& table);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_LATEX_H_
