// Breaks texts for people into lines.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_WRAP_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_WRAP_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "traces/base/namespaces.h"

namespace spillway::lab {

// The width of sentences where no terminal says another.
inline constexpr size_t kTextWidth = 80;

// Returns the text in lines of at most `width` characters, unless a word is longer; `width` 0
// stands for no limit. Lines that the text has already stay apart. The lines that are added begin
// with `indent` blanks. The last line ends with a newline.
std::string Wrapped(std::string_view text, size_t width = kTextWidth, size_t indent = 0);

// Returns the line, of which the end gives way to "..." if it is longer than `width`; 0 stands for
// no limit.
std::string CutAt(size_t width, std::string line);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_WRAP_H_
