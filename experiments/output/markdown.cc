#include "experiments/output/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace spillway::lab {

std::string EscapeMarkdown(std::string_view text) {
  constexpr std::string_view kSpecial = "\\`*_<>[]|~&$";
  std::string escaped;
  for (const char c : text) {
    if (kSpecial.find(c) != kSpecial.npos) escaped += '\\';
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return escaped;
}

std::string FormatMarkdown(const TextTable& table) {
  std::vector<std::vector<std::string>> cells(1);
  for (const TextTable::Column& column : table.columns) {
    cells[0].push_back(EscapeMarkdown(column.head));
  }
  for (const auto& row : table.rows) {
    std::ranges::transform(row, std::back_inserter(cells.emplace_back()), EscapeMarkdown);
  }
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    widths.push_back(2);  // the dashes below the head need this width
    for (const auto& row : cells) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = EscapeMarkdown(table.Caption()) + "\n\n";
  for (size_t r = 0; r < cells.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      text += table.columns[i].numbers ? fmt::format("| {:>{}} ", cells[r][i], widths[i])
                                       : fmt::format("| {:<{}} ", cells[r][i], widths[i]);
    }
    text += "|\n";
    for (size_t i = 0; r == 0 && i < widths.size(); ++i) {
      const std::string dashes(widths[i] - 1, '-');
      text +=
          table.columns[i].numbers ? fmt::format("| {}: ", dashes) : fmt::format("| :{} ", dashes);
    }
    if (r == 0) text += "|\n";
  }
  return text;
}

}  // namespace spillway::lab
