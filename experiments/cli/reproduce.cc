// spillway reproduce: the papers' numbers, computed again.

#include "experiments/reproduce.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/catalogue.h"
#include "experiments/cli/options.h"
#include "experiments/cli/verbs.h"
#include "sim/core/error.h"

namespace spillway::cli {
namespace {

struct ReproduceOptions {
  std::string item;
  FormatOption format;
};

std::string FormatReproductions(const std::vector<Reproduction>& results) {
  std::vector<std::vector<std::string>> cells{
      {"paper", "item", "workload", "unit", "evidence", "printed", "ours", "exact", "verdict"}};
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string("-");
  };
  for (const Reproduction& result : results) {
    const PaperValue& value = result.value;
    const char* verdict = !result.ours     ? "not computed yet"
                          : !result.judged ? "shown"
                          : result.passes  ? "ok"
                                           : "MISS";
    cells.push_back({value.paper, value.item, value.workload, value.unit, value.evidence,
                     value.printed.empty() ? "-" : value.printed, number(result.ours),
                     number(result.ours_exact), verdict});
  }
  return FormatTable(cells);
}

int Execute(const ReproduceOptions& options) {
  const auto path = FindDataFile("experiments/reproduce/paper-values.csv");
  if (!path) throw InputError("experiments/reproduce/paper-values.csv: not found");
  std::vector<Reproduction> results;
  for (const PaperValue& value : SelectPaperValues(ReadPaperValues(*path), options.item)) {
    results.push_back(Reproduce(value));
  }
  std::vector<Row> rows;
  for (const Reproduction& result : results) rows.push_back(MakeReproductionRow(result));
  switch (options.format.format()) {
    case Format::kCsv:
      fmt::print("{}", FormatCsv(rows));
      break;
    case Format::kJson:
      fmt::print("{}", FormatJson(rows, "spillway.reproduce/v1"));
      break;
    case Format::kTable:
      fmt::print("{}", FormatReproductions(results));
  }
  const bool all_pass = std::all_of(results.begin(), results.end(), [](const Reproduction& result) {
    return !result.judged || result.passes;
  });
  return all_pass ? kOk : kNegative;
}

}  // namespace

void AddReproduce(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "reproduce", "Compute a paper's printed numbers; exit code 1 if one is out of tolerance");
  auto options = std::make_shared<ReproduceOptions>();
  verb->add_option("item", options->item,
                   "all, a paper (vdnn), or an item such as 'base VGG-16(256) GB'")
      ->required();
  options->format.Add(*verb);
  verb->callback([options, &exit_code] { exit_code = Execute(*options); });
}

}  // namespace spillway::cli
