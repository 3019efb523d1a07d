#include "experiments/cli/frame/format_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "experiments/cli/frame/terminal.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {

namespace {

// The formats, and the ending of a file that implies each. Text files take any format.
struct FormatName {
  Format format;
  const char* name;
  const char* ending;
};
constexpr FormatName kFormats[] = {{Format::kTable, "table", ".txt"},
                                   {Format::kCsv, "csv", ".csv"},
                                   {Format::kJson, "json", ".json"},
                                   {Format::kMarkdown, "markdown", ".md"},
                                   {Format::kLatex, "latex", ".tex"}};

// Returns the ending of a file's name before it is compressed.
std::string EndingOf(std::filesystem::path path) {
  if (path.extension() == ".zst") path = path.stem();
  return path.extension();
}

}  // namespace

void FormatOption::Add(Command& verb) {
  std::vector<std::string> names;
  for (const FormatName& format : kFormats) names.emplace_back(format.name);
  option = &verb.Choice("--format", text, names, "Form of the output");
  verb.Flag("--wide", wide, "Tables with all columns and rows, whatever the terminal's width");
  verb.Texts("--columns", columns,
             "Columns of a table, markdown or latex, named as in CSV (default: the usual ones); "
             "csv and json have all")
      .NotEmpty("no column is named");
}

void FormatOption::AddPivot(Command& verb) {
  Option& rows = verb.Texts("--pivot", pivot.rows,
                            "Column, or several, whose values are the rows of a table, markdown or "
                            "latex (--pivot policy --by memory)");
  const Option& by = verb.Text("--by", pivot.by, "Column whose values are the columns").Needs(rows);
  verb.Text("--value", pivot.value, "Column that fills the cells").Needs(rows);
  rows.Needs(by).NotEmpty("no column is named");
}

void FormatOption::Follow(const std::string& output) {
  to_file = !output.empty();
  const std::string ending = EndingOf(output);
  if (ending.empty() || ending == other_ending) return;
  std::vector<std::string> valid;
  for (const FormatName& format : kFormats) valid.emplace_back(format.ending);
  if (!other_ending.empty()) valid.push_back(other_ending);
  CheckEnding(output, valid);
  for (const FormatName& format : kFormats) {
    if (ending != format.ending || format.format == Format::kTable) continue;
    if (option->given && text != format.name) {
      throw UsageError(fmt::format("--output '{}' names a {} file, --format says {}", output,
                                   format.name, text));
    }
    text = format.name;
  }
}

size_t FormatOption::width() const { return wide || to_file ? 0 : TerminalWidth(); }

View FormatOption::view() const {
  View view{std::ranges::find(kFormats, text, &FormatName::name)->format, columns, {}, width()};
  if (!pivot.rows.empty()) view.pivot = pivot;
  if (view.pivot && !columns.empty()) {
    throw UsageError("--pivot: cannot be given with --columns; --value fills the cells");
  }
  const bool has_all = view.format == Format::kCsv || view.format == Format::kJson;
  if (has_all && (view.pivot || !columns.empty())) {
    throw UsageError(
        fmt::format("--{}: {} has all columns, a row for each result; choose --format "
                    "table, markdown or latex",
                    view.pivot ? "pivot" : "columns", text));
  }
  return view;
}

void CheckEnding(const std::filesystem::path& path, const std::vector<std::string>& valid) {
  const std::string ending = EndingOf(path);
  if (ending.empty() || std::ranges::count(valid, ending) > 0) return;
  throw UsageError(
      fmt::format("--output '{}': {}", path.string(), UnknownName("ending", ending, valid)));
}

void AddOutput(Command& verb, std::string& path, FormatOption& format, const std::string& remark) {
  const auto set = [&path, &format](const std::string& text) {
    path = text == "-" ? "" : text;
    format.Follow(path);
    if (!path.empty()) CheckWritable(path);
  };
  verb.Setting("-o,--output", "", set,
               "Write the results to FILE, with a manifest beside it, instead of printing them; "
               "- prints them; .csv, .json, .md and .tex imply the format" +
                   remark)
      .Type("FILE")
      .NotEmpty("the name of the file is empty");
}

}  // namespace spillway::cli
