// A table for people as texts: the last form of results before Markdown, LaTeX or a terminal.

#ifndef SPILLWAY_EXPERIMENTS_OUTPUT_TEXT_TABLE_H_
#define SPILLWAY_EXPERIMENTS_OUTPUT_TEXT_TABLE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "traces/base/namespaces.h"

namespace spillway::lab {

// Returns the text with a capital first letter, if it is one of ASCII.
inline std::string Capitalized(std::string_view text) {
  std::string result(text);
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') result[0] -= 'a' - 'A';
  return result;
}

struct TextTable {
  struct Column {
    std::string head;      // with the unit: "iteration (ms)"
    bool numbers = false;  // aligned to the right
  };

  std::string title;               // the subject: "vgg16:64, device h200"
  std::vector<std::string> notes;  // sentences without a full stop that explain cells
  // The name of the property that the heads of the columns after the first `keys` give; empty if
  // each column has a head of its own.
  std::string group;
  size_t keys = 0;
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // each has a cell for each column; "-" is no value

  // Returns the title and the notes as sentences.
  std::string Caption() const {
    std::string text = title + ".";
    for (const std::string& note : notes) text += " " + note + ".";
    return text;
  }
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_OUTPUT_TEXT_TABLE_H_
