#include "experiments/output/columns.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "traces/base/csv.h"

namespace spillway::lab {
namespace {

template <typename... Visits>
struct Overloaded : Visits... {
  using Visits::operator()...;
};
template <typename... Visits>
Overloaded(Visits...) -> Overloaded<Visits...>;

constexpr double kGiB = 1073741824;

// Breaks the first cell of each row that is longer than `most`, if possible behind a comma or
// colon. Its other parts become rows of their own.
void BreakFirstCells(std::vector<std::vector<std::string>>& cells, size_t most) {
  for (size_t r = 1; r < cells.size(); ++r) {
    const std::string first = cells[r][0];
    if (first.size() <= most) continue;
    const size_t comma = first.find_last_of(",:", most - 3);
    const size_t end = comma == first.npos ? most - 2 : comma + 1;
    std::vector<std::string> rest(cells[r].size());
    cells[r][0] = first.substr(0, end);
    rest[0] = "  " + first.substr(end);
    cells.insert(cells.begin() + static_cast<std::ptrdiff_t>(r) + 1, std::move(rest));
  }
}

bool LooksNumeric(const std::string& text) {
  return text.find_first_not_of("0123456789.-+x%e") == std::string::npos;
}

}  // namespace

std::string FourDigits(double number, int decimals) {
  if (number == 0 || !std::isfinite(number)) return fmt::format("{}", number == 0 ? 0 : number);
  const std::string rounded = fmt::format("{:.3e}", number);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  return fmt::format("{:.{}f}", number, std::clamp(3 - exponent, 0, decimals));
}

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

std::string FormatCell(const Value& value, std::string_view unit) {
  return std::visit(Overloaded{[](std::monostate) { return std::string("-"); },
                               [](const Nested& nested) { return nested.json; },
                               [](const std::string& text) { return text; },
                               [](bool truth) { return std::string(truth ? "yes" : "no"); },
                               [](double number) { return FourDigits(number); },
                               [&](int64_t number) {
                                 return unit == "B" ? FourDigits(static_cast<double>(number) / kGiB)
                                                    : fmt::format("{}", number);
                               }},
                    value);
}

std::string FormatTable(std::vector<std::vector<std::string>> cells, size_t width) {
  size_t left_out = 0;
  if (width > 0) {
    BreakFirstCells(cells, std::max<size_t>(width * 9 / 20, 12));
    size_t used = 0;
    for (size_t i = 0; i < cells[0].size();) {
      size_t widest = 0;
      bool dashes = cells.size() > 1;
      for (size_t r = 0; r < cells.size(); ++r) {
        widest = std::max(widest, cells[r][i].size());
        dashes = dashes && (r == 0 || cells[r][i] == "-" || cells[r][i].empty());
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

}  // namespace spillway::lab
