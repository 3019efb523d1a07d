// Writes tables as Markdown.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_MARKDOWN_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_MARKDOWN_H_

#include <string>
#include <string_view>

#include "experiments/output/text_table.h"

namespace spillway::lab {

// Returns the text with a backslash before each character that GitHub's Markdown gives a meaning
// within a line, and a space in place of each control character.
std::string EscapeMarkdown(std::string_view text);

// Returns the caption, an empty line and a table with pipes as GitHub draws it.
std::string FormatMarkdown(const TextTable& table);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_MARKDOWN_H_
