#include "experiments/output/columns.h"

#include <fmt/format.h>

#include <cstddef>

#include "traces/base/csv.h"

namespace spillway {
namespace {

template <typename... Visits>
struct Overloaded : Visits... {
  using Visits::operator()...;
};
template <typename... Visits>
Overloaded(Visits...) -> Overloaded<Visits...>;

bool LooksNumeric(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.-+x%e") == std::string::npos;
}

}  // namespace

void PutValue(JsonWriter& json, const Value& value) {
  std::visit(Overloaded{[&](std::monostate) { json.Put(std::nullopt); },
                        [&](const Nested& nested) { json.PutJson(nested.json); },
                        [&](const auto& other) { json.Put(other); }},
             value);
}

void AppendCsv(std::string& line, const Value& value) {
  std::visit(Overloaded{[](std::monostate) {}, [](const Nested&) {},
                        [&](const std::string& text) { line += CsvField(text); },
                        [&](auto other) { line += fmt::format("{}", other); }},
             value);
}

std::string FormatCell(const Value& value, std::string_view unit, int digits) {
  const double scale = unit == "B" ? 1073741824.0 : 1;
  return std::visit(Overloaded{[](std::monostate) { return std::string("-"); },
                               [](const Nested& nested) { return nested.json; },
                               [](const std::string& text) { return text; },
                               [](bool truth) { return std::string(truth ? "yes" : "no"); },
                               [&](auto number) {
                                 return fmt::format("{:.{}f}", static_cast<double>(number) / scale,
                                                    digits);
                               }},
                    value);
}

std::string FormatTable(std::vector<std::vector<std::string>> cells, size_t width) {
  size_t left_out = 0;
  if (width > 0) {
    size_t used = 0;
    for (size_t i = 0; i < cells[0].size();) {
      size_t widest = 0;
      bool dashes = cells.size() > 1;
      for (size_t r = 0; r < cells.size(); ++r) {
        widest = std::max(widest, cells[r][i].size());
        dashes = dashes && (r == 0 || cells[r][i] == "-");
      }
      const size_t end = used + (i > 0 ? 2 : 0) + widest;
      if (!dashes && (i == 0 || end <= width)) {
        used = end;
        ++i;
        continue;
      }
      if (!dashes) {
        used = width;  // no later column fits
        ++left_out;
      }
      for (auto& row : cells) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  std::vector<size_t> widths;
  for (const auto& row : cells) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<bool> right(widths.size(), true);
  for (size_t r = 1; r < cells.size(); ++r) {
    for (size_t i = 0; i < cells[r].size(); ++i) {
      if (!LooksNumeric(cells[r][i])) right[i] = false;
    }
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += right[i] ? fmt::format("{:>{}}", row[i], widths[i])
                       : fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  if (left_out > 0) text += fmt::format("({} more columns with --wide)\n", left_out);
  return text;
}

}  // namespace spillway
