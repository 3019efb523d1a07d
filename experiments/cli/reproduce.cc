// spillway reproduce: the papers' numbers, computed again.

#include "experiments/reproduce/reproduce.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "experiments/cli/options.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/run/catalogue.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {
namespace {

struct ReproduceOptions {
  std::string item;
  FormatOption format;
  std::string output;
  std::string figures;
};

// How the printed numbers are known, and what became of them.
std::string FormatLegend(const std::vector<Reproduction>& results) {
  PaperTotal all;
  for (const PaperTotal& total : TotalsOf(results)) {
    all.agree += total.agree;
    all.miss += total.miss;
    all.shown += total.shown;
    all.not_computed += total.not_computed;
  }
  return fmt::format(
      "\n{} items: {} agree, {} miss, {} shown and not judged, {} not computed\n"
      "evidence: = has to agree to the printed digits, c within 1 %, ~ within 2 %;\n"
      "f (a fit) and x (not explained) are shown and not judged\n",
      results.size(), all.agree, all.miss, all.shown, all.not_computed);
}

std::string FormatReproductions(const std::vector<Reproduction>& results, size_t width) {
  std::vector<std::vector<std::string>> cells{
      {"paper", "item", "verdict", "printed", "ours", "unit", "evidence", "workload", "exact"}};
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string("-");
  };
  for (const Reproduction& result : results) {
    const PaperValue& value = result.value;
    const char* verdict = !result.ours     ? "not computed yet"
                          : !result.judged ? "shown"
                          : result.passes  ? "ok"
                                           : "MISS";
    cells.push_back({value.paper, value.item, verdict, value.printed.empty() ? "-" : value.printed,
                     number(result.ours), value.unit, value.evidence, value.workload,
                     number(result.ours_exact)});
  }
  return FormatTable(std::move(cells), width) + FormatLegend(results);
}

// {"schema": "spillway.reproduce/v1", "rows": [...], "totals": [by paper and evidence]}
std::string FormatJson(const std::vector<Reproduction>& results) {
  JsonWriter json(3);
  json.BeginObject().Put("schema", "spillway.reproduce/v1");
  PutRows<Reproduction>(json.Key("rows"), ReproductionColumns(), results);
  PutRows<PaperTotal>(json.Key("totals"), TotalColumns(), TotalsOf(results));
  return json.EndObject().Take();
}

std::vector<Reproduction> ReproduceAll(const std::vector<PaperItem>& items, ProgressBar& progress) {
  std::vector<Reproduction> results;
  for (const PaperItem& item : items) {
    progress.Say(item.value.item);
    results.push_back(Reproduce(item));
    progress.Advance(item.value.item);
  }
  return results;
}

// Throws `EnvironmentError` if Python or matplotlib is missing, `Error` if the script fails.
void DrawFigures(const std::string& script, const std::string& directory) {
  std::string python = "python3", path = script, folder = directory;
  char* const arguments[] = {python.data(), path.data(), folder.data(), nullptr};
  pid_t child = 0;
  const bool started = posix_spawnp(&child, "python3", nullptr, nullptr, arguments, environ) == 0;
  int status = 0;
  const bool ended = started && waitpid(child, &status, 0) == child && WIFEXITED(status);
  const int code = ended ? WEXITSTATUS(status) : kMissingEnvironment;
  if (code == kOk) return;
  const std::string message =
      fmt::format("the figures were not drawn; their numbers are in '{}'", directory);
  if (code == kMissingEnvironment)
    throw EnvironmentError(message + "; python3 and python3-matplotlib draw them");
  throw Error(message);
}

// A CSV for each table and figure, and what they look like.
void MakeFigures(const PaperValues& printed, const ReproduceOptions& options, Session& session) {
  const std::string script = "experiments/reproduce/plot.py";
  const auto path = FindDataFile(script);
  if (!path) throw InputError(script + ": not found");
  const std::vector<PaperSheet> sheets = SelectSheets(printed, options.item);
  CreateDirectory(options.figures);
  size_t count = 0;
  for (const PaperSheet& sheet : sheets) count += sheet.items.size();
  session.progress().Start(count);
  for (const PaperSheet& sheet : sheets) {
    const auto results = ReproduceAll(sheet.items, session.progress());
    WriteFile(std::filesystem::path(options.figures) / (sheet.name + ".csv"),
              FormatCsv<Reproduction>(ReproductionColumns(), results));
  }
  session.progress().Wipe();
  DrawFigures(path->string(), options.figures);
}

int Execute(const ReproduceOptions& options, Session& session) {
  const std::string list = "experiments/reproduce/paper-values.csv";
  const auto path = FindDataFile(list);
  if (!path) throw InputError(list + ": not found");
  const PaperValues printed = ReadPaperValues(*path);
  const std::vector<PaperItem> items = SelectItems(printed, options.item);
  if (!options.figures.empty()) MakeFigures(printed, options, session);
  session.progress().Start(items.size());
  const std::vector<Reproduction> results = ReproduceAll(items, session.progress());
  session.progress().Wipe();
  const Format format = options.format.format();
  const std::string text = format == Format::kJson ? FormatJson(results)
                           : format == Format::kCsv
                               ? FormatCsv<Reproduction>(ReproductionColumns(), results)
                               : FormatReproductions(results, options.format.width());
  const bool all_pass = std::all_of(results.begin(), results.end(), [](const Reproduction& result) {
    return !result.judged || result.passes;
  });
  return session.Finish(
      text, options.output, {}, all_pass ? kOk : kNegative, [&](Manifest& manifest) {
        manifest.configuration = {{"item", options.item}};
        manifest.AddInput("paper_values", "data", list);
        for (const std::string& device : DeviceNames()) {
          manifest.AddInput("device", "data", fmt::format("sim/devices/{}.toml", device));
        }
      });
}

}  // namespace

void AddReproduce(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand(
      "reproduce", "Compute a paper's printed numbers; exit code 1 if one is out of tolerance");
  auto options = std::make_shared<ReproduceOptions>();
  std::vector<std::string_view> computed, printed;
  for (const Paper& paper : Papers()) {
    (paper.tables != nullptr ? computed : printed).push_back(paper.name);
  }
  std::string papers = fmt::format("{}", fmt::join(computed, ", "));
  if (!printed.empty()) {
    papers += fmt::format("; of {} only what is printed", fmt::join(printed, " and "));
  }
  verb->add_option("item", options->item,
                   fmt::format("all, a paper ({}), a table or figure (superneurons-Tab2), or an "
                               "item such as 'base VGG-16(256) GB'",
                               papers))
      ->required();
  verb->add_option(
          "--figures", options->figures,
          "Also write the tables and figures that are asked for (all, those of a paper, or "
          "one) into this directory: each as CSV, and figures as PDF and PNG by matplotlib")
      ->type_name("DIRECTORY");
  options->format.Add(*verb);
  AddOutput(*verb, options->output, options->format);
  verb->callback([options, &exit_code, &session] { exit_code = Execute(*options, session); });
}

}  // namespace spillway::cli
