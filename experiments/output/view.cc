#include "experiments/output/view.h"

#include <algorithm>

#include "experiments/output/latex.h"
#include "experiments/output/markdown.h"

namespace spillway::lab {
namespace {

std::string FormatPlain(const TextTable& table, size_t width) {
  std::vector<std::vector<std::string>> cells(1);
  for (const TextTable::Column& column : table.columns) cells[0].push_back(column.head);
  cells.insert(cells.end(), table.rows.begin(), table.rows.end());
  return table.Caption() + "\n\n" + FormatTable(std::move(cells), width);
}

// Returns "Trace info" for "spillway.trace-info/v1".
std::string WordOf(std::string_view schema) {
  std::string word(schema.substr(schema.find('.') + 1));
  word.resize(std::min(word.size(), word.find('/')));
  std::ranges::replace(word, '-', ' ');
  return Capitalized(word);
}

}  // namespace

std::string FormatView(const View& view, const ValueTable& table, std::string_view schema) {
  CheckView(view, table);
  if (table.rows.empty()) return {};
  TextTable text =
      view.pivot ? FormatPivot(table, *view.pivot) : ChooseColumns(table, view.columns);
  if (!view.pivot) text.title = WordOf(schema) + (text.title.empty() ? "" : ": ") + text.title;
  if (view.format == Format::kMarkdown) return FormatMarkdown(text);
  if (view.format == Format::kLatex) return FormatLatex(text);
  return FormatPlain(text, view.width);
}

void CheckView(const View& view, const ValueTable& table) {
  table.IndicesOf(view.columns);
  if (view.pivot) CheckPivot(table, *view.pivot);
}

}  // namespace spillway::lab
