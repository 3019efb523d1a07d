// spillway list: what there is to name.

#include <fmt/format.h>

#include "experiments/cli/options.h"
#include "experiments/cli/verbs.h"

namespace spillway::cli {

void AddList(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("list", "List networks, policies, devices and more");
  auto what = std::make_shared<std::string>("all");
  verb->add_option("what", *what, "What to list")
      ->check(CLI::IsMember({"all", "networks", "presets", "policies", "devices", "allocators"}))
      ->capture_default_str();
  verb->callback([what, &exit_code] {
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
}

}  // namespace spillway::cli
