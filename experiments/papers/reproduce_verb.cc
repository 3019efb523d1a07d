// spillway reproduce: the papers' numbers, computed again.

#include "experiments/papers/reproduce.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/format_option.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/data_files.h"
#include "experiments/run/device_specification.h"
#include "traces/base/error.h"
#include "traces/base/file.h"

namespace spillway::cli {
namespace {

constexpr const char* kPaperValues = "experiments/papers/paper-values.csv";

struct ReproduceOptions {
  std::string item;
  FormatOption format;
  std::string output;
  std::string figures;
  std::string device;  // empty: the papers'
  std::string cost = "auto";

  std::optional<Case> on() const {
    if (device.empty()) return std::nullopt;
    return Case{.workload = "", .device = device, .cost = cost};
  }
};

// Returns the totals of all items, and the meaning of the letters of evidence.
std::string FormatLegend(const std::vector<Reproduction>& results) {
  PaperTotal all;
  for (const PaperTotal& total : TotalsOf(results)) {
    all.agree += total.agree;
    all.miss += total.miss;
    all.shown += total.shown;
    all.far += total.far;
    all.not_computed += total.not_computed;
  }
  return fmt::format(
      "\n{} items: {} agree, {} miss, {} shown and not judged ({} off by more than 25 %), {} not "
      "computed\n"
      "Evidence: an item with = has to agree to the printed digits, with c within 1 %, with ~\n"
      "within 2 %. Items with f (a fit) or x (not explained) are shown and not judged.\n",
      results.size(), all.agree, all.miss, all.shown, all.far, all.not_computed);
}

std::string FormatReproductions(const std::vector<Reproduction>& results, size_t width) {
  std::vector<std::vector<std::string>> cells{
      {"paper", "item", "verdict", "printed", "ours", "unit", "evidence", "workload", "exact"}};
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string("-");
  };
  for (const Reproduction& result : results) {
    const PaperValue& value = result.item.value;
    const char* verdict = !result.item.key ? "not computed yet"
                          : !result.ours   ? "does not fit"
                          : !result.judged ? "shown"
                          : result.passes  ? "ok"
                                           : "MISS";
    cells.push_back({value.paper, value.item, verdict,
                     value.printed ? fmt::format("{:.{}f}", *value.printed, value.decimals) : "-",
                     number(result.ours), value.unit, value.evidence, value.workload,
                     number(result.ours_exact)});
  }
  return FormatTable(std::move(cells), width) + FormatLegend(results);
}

// Returns {"schema": "spillway.reproduce/v1", "rows": [...], "totals": [by paper and evidence]}.
std::string FormatJson(const std::vector<Reproduction>& results) {
  JsonWriter json(3);
  json.BeginObject().Put("schema", "spillway.reproduce/v1");
  PutRows<Reproduction>(json.Key("rows"), ReproductionColumns(), results);
  PutRows<PaperTotal>(json.Key("totals"), TotalColumns(), TotalsOf(results));
  return json.EndObject().Take();
}

// Runs the script that draws the figures whose CSVs are in the directory. Throws
// `EnvironmentError` if Python or matplotlib is missing, and `Error` if the script fails.
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
      fmt::format("the figures were not drawn, but their numbers are in '{}'", directory);
  if (code == kMissingEnvironment)
    throw EnvironmentError(message + "; to draw them, install python3 and python3-matplotlib");
  throw Error(message);
}

// The results of items. An item that is added several times is computed once.
class Results {
 public:
  void Add(const std::vector<PaperItem>& items) {
    for (const PaperItem& item : items) {
      if (index_.emplace(Key(item), items_.size()).second) items_.push_back(item);
    }
  }
  void Compute(ProgressBar& progress) {
    progress.Start(items_.size());
    results_ = Reproduce(items_, [&](const PaperItem& item) { progress.Advance(item.value.item); });
    progress.Wipe();
  }
  std::vector<Reproduction> Of(const std::vector<PaperItem>& items) const {
    std::vector<Reproduction> results;
    for (const PaperItem& item : items) results.push_back(results_[index_.at(Key(item))]);
    return results;
  }

 private:
  static std::pair<std::string, std::string> Key(const PaperItem& item) {
    return {item.value.paper, item.value.item};
  }

  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<PaperItem> items_;
  std::vector<Reproduction> results_;
};

// Returns the script that draws figures. Throws `InputError` if it is missing.
std::filesystem::path FigureScript() {
  const std::string script = "experiments/papers/plot.py";
  const auto path = FindDataFile(script);
  if (!path) throw InputError(script + ": not found");
  return *path;
}

// Returns the files on which numbers depend. On another GPU with cost "auto" these are all recorded
// tables of the GPU.
std::vector<InputFile> FilesOf(const ReproduceOptions& options) {
  std::vector<InputFile> files{{"paper_values", "data", kPaperValues}};
  for (const std::string& device : DeviceNames()) files.push_back(DeviceFileOf(device));
  if (options.device.empty()) return files;
  files.push_back(DeviceFileOf(options.device));
  if (options.cost == "auto") {
    const std::filesystem::path folder =
        RecordedTablePath(LoadDevice(options.device).name, "", 0).parent_path();
    std::set<std::string> names;
    for (const std::filesystem::path& directory : DataDirectories()) {
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator(directory / folder, ignored)) {
        names.insert(entry.path().filename());
      }
    }
    for (const std::string& name : names) files.push_back({"cost_table", "data", folder / name});
  } else if (options.cost != "roofline") {
    files.push_back({"cost_table", "file", options.cost});
  }
  return files;
}

int Execute(const ReproduceOptions& options, Session& session) {
  const View view = options.format.view();
  CheckView(view, ReproductionColumns());
  const auto path = FindDataFile(kPaperValues);
  if (!path) throw InputError(fmt::format("{}: not found", kPaperValues));
  const PaperValues printed = ReadPaperValues(*path);
  if (options.on()) LoadDevice(options.device);  // throws before the first item is computed
  const std::vector<PaperItem> items = SelectItems(printed, options.item, options.on());
  std::vector<PaperSheet> sheets;
  std::string script;
  if (!options.figures.empty()) {
    script = FigureScript();
    sheets = SelectSheets(printed, options.item, options.on());
    if (!session.captures()) CreateDirectory(options.figures);
  }
  Results computed;
  computed.Add(items);
  for (const PaperSheet& sheet : sheets) computed.Add(sheet.items);
  computed.Compute(session.progress());
  std::vector<Export> files;
  for (const PaperSheet& sheet : sheets) {
    const auto file = std::filesystem::path(options.figures) / (sheet.name + ".csv");
    files.push_back({"--figures", file.string(), [&computed, &sheet](const Manifest&) {
                       return FormatCsv<Reproduction>(ReproductionColumns(),
                                                      computed.Of(sheet.items));
                     }});
  }
  const std::vector<Reproduction> results = computed.Of(items);
  constexpr std::string_view kUsual[] = {"item", "printed", "ours", "unit", "evidence"};
  const std::string text =
      view.format == Format::kJson
          ? FormatJson(results)
          : FormatAs<Reproduction>(
                view, ReproductionColumns(), results, "spillway.reproduce/v1",
                [&] { return FormatReproductions(results, view.width); }, kUsual);
  const bool all_pass = std::all_of(results.begin(), results.end(), [](const Reproduction& result) {
    return !result.judged || result.passes;
  });
  const int exit_code = session.Finish(
      text, options.output, files, all_pass ? kOk : kNegative, [&](Manifest& manifest) {
        manifest.configuration = {{"item", options.item}};
        if (options.on()) {
          manifest.configuration.emplace_back("device", options.device);
          manifest.configuration.emplace_back("cost", options.cost);
        }
        DescribeFiles(FilesOf(options), manifest);
      });
  if (!sheets.empty() && !session.captures()) DrawFigures(script, options.figures);
  return exit_code;
}

}  // namespace

void AddReproduce(Command& program, Session& session) {
  Command& verb = program.Add(
      "reproduce",
      "Compute the numbers that a paper prints; exit code 1 if one is out of tolerance");
  verb.examples = {"reproduce vdnnpp", "reproduce vdnn-Fig1 --device h200"};
  auto& options = verb.Runs(Execute, session);
  std::vector<std::string_view> papers;
  for (const Paper& paper : Papers()) papers.push_back(paper.name);
  verb.Text("item", options.item,
            fmt::format("all, a paper ({}), a table or figure (superneurons-Tab2), or an item such "
                        "as 'base VGG-16(256) GB'",
                        fmt::join(papers, ", ")))
      .Required();
  verb.Text("--figures", options.figures,
            "Also write the named tables and figures (all, a paper's, or a single one) into this "
            "directory: each as CSV with a manifest, and figures as PDF and PNG, which matplotlib "
            "draws from the CSV")
      .Type("DIRECTORY");
  const Option& device =
      verb.Text("--device", options.device,
                "Compute the items for this GPU (built-in name or .toml file) instead of the "
                "paper's; nothing is judged then");
  verb.Text("--cost", options.cost,
            "Kernel times of that GPU: auto (a recorded table if one has all kernels, otherwise "
            "roofline), roofline, or a cost table file")
      .Needs(device);
  options.format.Add(verb);
  AddOutput(verb, options.output, options.format);
}

}  // namespace spillway::cli
