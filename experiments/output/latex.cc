#include "experiments/output/latex.h"

#include <fmt/format.h>

#include <cctype>
#include <iterator>

namespace spillway::lab {
namespace {

// Returns the LaTeX of a character that does not stand for itself, or an empty text.
std::string_view Replacement(char c) {
  switch (c) {
    case '&':
      return "\\&";
    case '%':
      return "\\%";
    case '$':
      return "\\$";
    case '#':
      return "\\#";
    case '_':
      return "\\_";
    case '{':
      return "\\{";
    case '}':
      return "\\}";
    case '~':
      return "\\textasciitilde{}";
    case '^':
      return "\\textasciicircum{}";
    case '\\':
      return "\\textbackslash{}";
    case '<':
      return "\\textless{}";
    case '>':
      return "\\textgreater{}";
    case '|':
      return "\\textbar{}";
    case '`':
      return "\\textasciigrave{}";
    case '"':
      return "''";
    case '[':
      return "{[}";
    case ']':
      return "{]}";
    case '*':
      return "{*}";
    default:
      return static_cast<unsigned char>(c) < ' ' ? " " : "";
  }
}

std::string FormatCell(const std::string& text, bool number) {
  if (text == "-") return "--";
  if (number && text.starts_with('-')) return fmt::format("$-${}", EscapeLatex(text.substr(1)));
  return EscapeLatex(text);
}

}  // namespace

std::string EscapeLatex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const std::string_view replacement = Replacement(c);
    if (c == '-' && escaped.ends_with('-')) escaped += "{}";  // two hyphens are not a dash
    if (replacement.empty()) {
      escaped += c;
    } else {
      escaped += replacement;
    }
  }
  return escaped;
}

std::string LatexLabel(std::string_view title) {
  std::string label;
  for (const char c : title.substr(0, title.find(','))) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      label += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!label.empty() && label.back() != '-') {
      label += '-';
    }
  }
  if (label.ends_with('-')) label.pop_back();
  return "tab:" + label;
}

std::string FormatLatex(const TextTable& table) {
  std::string alignment;
  for (const TextTable::Column& column : table.columns) alignment += column.numbers ? 'r' : 'l';
  std::string text = fmt::format(
      "% \\usepackage{{booktabs}}\n\\begin{{table}}\n  \\centering\n  \\caption{{{}}}\n"
      "  \\label{{{}}}\n  \\begin{{tabular}}{{{}}}\n    \\toprule\n",
      EscapeLatex(table.Caption()), LatexLabel(table.title), alignment);
  const auto add_row = [&](const auto& cell_of) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      text += fmt::format("{}{}", i == 0 ? "    " : " & ", cell_of(i));
    }
    text += " \\\\\n";
  };
  if (!table.group.empty()) {
    const size_t all = table.columns.size();
    text += "   ";
    for (size_t i = 0; i < table.keys; ++i) text += " &";
    text += fmt::format(" \\multicolumn{{{}}}{{c}}{{{}}} \\\\\n    \\cmidrule(lr){{{}-{}}}\n",
                        all - table.keys, EscapeLatex(table.group), table.keys + 1, all);
  }
  add_row([&](size_t i) { return EscapeLatex(table.columns[i].head); });
  text += "    \\midrule\n";
  for (const auto& row : table.rows) {
    add_row([&](size_t i) { return FormatCell(row[i], table.columns[i].numbers); });
  }
  return text + "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n";
}

}  // namespace spillway::lab
