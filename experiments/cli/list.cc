// spillway list: what there is to name.

#include <fmt/format.h>

#include "experiments/cli/options.h"
#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "experiments/output/run_result.h"

namespace spillway::cli {
namespace {

// What the rows of `run` and `compare` are made of.
void AddColumns(CLI::App& list, int& exit_code, Session& session) {
  CLI::App* verb = list.add_subcommand("columns", "The columns of results, with unit and meaning");
  auto format = std::make_shared<FormatOption>();
  format->Add(*verb);
  verb->callback([format, &exit_code, &session] {
    using Result = Column<RunResult>;
    const Columns<Result> columns{
        {"name", "", "in CSV and JSON", &Result::name, "column"},
        {"unit", "", "ms or B; 1 for ratios and counts", &Result::unit, "unit"},
        {"type", "", "in JSON", &Result::type},
        {"help", "", "what it means", &Result::help, "meaning"},
    };
    constexpr std::string_view kShown[] = {"name", "unit", "help"};
    const Columns<RunResult> results = ResultColumns();
    exit_code = session.Finish(FormatAs(format->format(), columns, results, "spillway.columns/v1",
                                        [&] { return FormatTable(columns, kShown, results); }),
                               kOk);
  });
}

}  // namespace

void AddList(CLI::App& app, int& exit_code, Session& session) {
  CLI::App* verb = app.add_subcommand("list", "List networks, policies, devices and more");
  auto what = std::make_shared<std::string>("all");
  verb->add_option("what", *what, "What to list")
      ->check(CLI::IsMember({"all", "networks", "presets", "policies", "devices", "allocators"}))
      ->capture_default_str();
  verb->callback([what, verb, &exit_code] {
    if (!verb->get_subcommands().empty()) return;
    const auto print = [&](const char* name, std::string (*describe)()) {
      if (*what != "all" && *what != name) return;
      if (*what == "all") fmt::print("== {} ==\n", name);
      fmt::print("{}{}", describe(), *what == "all" ? "\n" : "");
    };
    print("networks", DescribeNetworks);
    print("presets", DescribePresets);
    print("policies", DescribePolicies);
    print("devices", DescribeDevices);
    print("allocators", DescribeAllocators);
    exit_code = kOk;
  });
  AddColumns(*verb, exit_code, session);
}

}  // namespace spillway::cli
