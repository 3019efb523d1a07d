// Tests of Markdown and LaTeX: drawn texts with characters of markup come back from the documents.

#include "experiments/output/text_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>
#include <utility>

#include "experiments/output/latex.h"
#include "experiments/output/markdown.h"

namespace spillway::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Rows = std::vector<std::vector<std::string>>;

// Returns a text that neither begins nor ends with a space.
std::string DrawText(std::mt19937& random) {
  constexpr std::string_view kCharacters = "ab1 .,:;=+/!?@()'-&%$#_{}~^\\<>|`\"[]*";
  std::string text;
  const size_t size = random() % 12;
  while (text.size() < size) text += kCharacters[random() % kCharacters.size()];
  return "x" + text + "x";
}

TextTable DrawTable(std::mt19937& random) {
  TextTable table;
  table.title = DrawText(random);
  const size_t columns = 1 + random() % 5, rows = random() % 5;
  for (size_t i = 0; i < columns; ++i)
    table.columns.push_back({DrawText(random), random() % 2 > 0});
  for (size_t r = 0; r < rows; ++r) {
    table.rows.emplace_back();
    for (size_t i = 0; i < columns; ++i) table.rows[r].push_back(DrawText(random));
  }
  return table;
}

Rows HeadAndRows(const TextTable& table) {
  Rows rows(1);
  for (const TextTable::Column& column : table.columns) rows[0].push_back(column.head);
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  return rows;
}

// Returns the cells of a line between separators that no backslash precedes.
std::vector<std::string> Split(const std::string& line, char separator) {
  std::vector<std::string> cells(1);
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == separator) {
      cells.emplace_back();
      continue;
    }
    cells.back() += line[i];
    if (line[i] == '\\' && i + 1 < line.size()) cells.back() += line[++i];
  }
  for (std::string& cell : cells) {
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
  }
  return cells;
}

// Returns the text that a cell of Markdown prints.
std::string FromMarkdown(const std::string& cell) {
  std::string text;
  for (size_t i = 0; i < cell.size(); ++i) text += cell[i] == '\\' ? cell[++i] : cell[i];
  return text;
}

// Returns the text that a cell of LaTeX prints.
std::string FromLatex(std::string_view cell) {
  constexpr std::array<std::pair<std::string_view, char>, 18> kCommands{{
      {"\\textasciitilde{}", '~'},
      {"\\textasciicircum{}", '^'},
      {"\\textbackslash{}", '\\'},
      {"\\textless{}", '<'},
      {"\\textgreater{}", '>'},
      {"\\textbar{}", '|'},
      {"\\textasciigrave{}", '`'},
      {"{[}", '['},
      {"{]}", ']'},
      {"{*}", '*'},
      {"\\&", '&'},
      {"\\%", '%'},
      {"\\$", '$'},
      {"\\#", '#'},
      {"\\_", '_'},
      {"\\{", '{'},
      {"\\}", '}'},
      {"''", '"'},
  }};
  std::string text;
  while (!cell.empty()) {
    const auto command = std::ranges::find_if(
        kCommands, [&](const auto& known) { return cell.starts_with(known.first); });
    if (command != kCommands.end()) {
      text += command->second;
      cell.remove_prefix(command->first.size());
    } else if (cell.starts_with("{}")) {
      cell.remove_prefix(2);
    } else {
      text += cell.front();
      cell.remove_prefix(1);
    }
  }
  return text;
}

// Returns the depth of braces at the end of the text, or -1 if one closes that was not open.
int BraceDepth(const std::string& text) {
  int depth = 0;
  for (size_t i = 0; i < text.size() && depth >= 0; ++i) {
    if (text[i] == '\\') {
      ++i;
    } else {
      depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    }
  }
  return depth;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(TextTableTest, DrawnTextsComeBackFromMarkdown) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const TextTable table = DrawTable(random);
    const std::string text = FormatMarkdown(table);
    Rows cells;
    for (const std::string& line : LinesOf(text)) {
      if (!line.starts_with('|')) continue;
      cells.push_back(Split(line, '|'));
      ASSERT_EQ(cells.back().size(), table.columns.size() + 2) << text;
      cells.back().erase(cells.back().begin());
      cells.back().pop_back();
      for (std::string& cell : cells.back()) cell = FromMarkdown(cell);
    }
    cells.erase(cells.begin() + 1);  // the alignments
    EXPECT_EQ(cells, HeadAndRows(table)) << text;
    EXPECT_EQ(FromMarkdown(LinesOf(text)[0]), table.title + ".");
  }
}

TEST(TextTableTest, DrawnTextsComeBackFromLatex) {
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    TextTable table = DrawTable(random);
    for (auto& row : table.rows) {
      for (std::string& cell : row)
        std::erase(cell, '\'');  // two of them print as one quotation mark
    }
    for (TextTable::Column& column : table.columns) std::erase(column.head, '\'');
    const std::string text = FormatLatex(table);
    EXPECT_EQ(BraceDepth(text), 0) << text;
    EXPECT_EQ(text.find("--"), text.npos) << text;
    Rows cells;
    for (std::string line : LinesOf(text)) {
      if (!line.ends_with(" \\\\")) continue;
      line.resize(line.size() - 3);
      cells.push_back(Split(line, '&'));
      for (std::string& cell : cells.back()) cell = FromLatex(cell);
    }
    EXPECT_EQ(cells, HeadAndRows(table)) << text;
  }
}

TEST(TextTableTest, LatexHasRulesAlignmentsAndAGroup) {
  TextTable table;
  table.title = "Slowdown by policy and memory: vgg16:64, device h200";
  table.notes = {"oom: out of memory"};
  table.group = "memory";
  table.keys = 1;
  table.columns = {{"policy", false}, {"40%", true}, {"80%", true}};
  table.rows = {{"vdnn_all", "oom", "-1.500"}, {"dtr", "", "-"}};
  EXPECT_EQ(FormatLatex(table),
            R"(% \usepackage{booktabs}
\begin{table}
  \centering
  \caption{Slowdown by policy and memory: vgg16:64, device h200. oom: out of memory.}
  \label{tab:slowdown-by-policy-and-memory-vgg16-64}
  \begin{tabular}{lrr}
    \toprule
    & \multicolumn{2}{c}{memory} \\
    \cmidrule(lr){2-3}
    policy & 40\% & 80\% \\
    \midrule
    vdnn\_all & oom & $-$1.500 \\
    dtr &  & -- \\
    \bottomrule
  \end{tabular}
\end{table}
)");
  EXPECT_THAT(FormatMarkdown(table), HasSubstr("| policy    | 40% |    80% |\n"
                                               "| :-------- | --: | -----: |\n"
                                               "| vdnn\\_all | oom | -1.500 |\n"));
}

TEST(TextTableTest, LabelsAreSafe) {
  const std::vector<std::string> labels{LatexLabel("vgg16:64, device h200"),
                                        LatexLabel("--A_b  (C%)--"), LatexLabel("é{}")};
  EXPECT_THAT(labels, ElementsAre("tab:vgg16-64", "tab:a-b-c", "tab:"));
}

}  // namespace
}  // namespace spillway::testing
