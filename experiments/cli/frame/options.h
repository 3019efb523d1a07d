// Options that several verbs share, with the same names, defaults and help everywhere.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/output/run_result.h"
#include "experiments/run/catalogue.h"
#include "experiments/run/scenario.h"

namespace spillway::cli {

// --format table|csv|json --wide
struct FormatOption {
  std::string text = "table";
  bool wide = false;
  const Option* option = nullptr;
  bool to_file = false;

  void Add(Command& verb);
  // Results go to the file `output`, where it is not empty, in the format that its name says.
  // Throws `UsageError` if another one was given.
  void Follow(const std::string& output);
  Format format() const;
  // Of a table: the columns of the terminal that standard output is; 0 where it is none, or with
  // --wide: as wide as it gets.
  size_t width() const;
};

// Several policies at once: --policy --jobs.
struct PoliciesOption {
  std::vector<std::string> given;
  int jobs = 0;  // threads; 0: one per core

  void Add(Command& verb);
  // Returns the given policies, or all of the mode, as `--mode` names it, if none is given.
  std::vector<std::string> policies(std::string_view mode) const;
  // Calls `work` for each number below `count`, on as many threads as --jobs says.
  void ForEach(size_t count, const std::function<void(size_t)>& work) const;
};

// -o, --output of a verb that prints its results otherwise, as with "-", which leaves the path
// empty. `format` follows it. REQUIRES: both live as long as the verb's callback.
void AddOutput(Command& verb, std::string& path, FormatOption& format,
               const std::string& remark = "");

// What is run: WORKLOAD --preset --mode --host.
struct WorkloadOption {
  std::string text;
  std::string preset = "torch";
  std::string mode = "training";
  std::string host = "plain";
  const Option* preset_option = nullptr;
  const Option* mode_option = nullptr;

  void Add(Command& verb);
  void AddLowering(Command& verb);  // --preset, --mode and --host alone
  // Throws `UsageError` if a preset or mode was given and a trace file says another one.
  Trace Load() const;
};

// Where it is run: --device --memory --allocator --compress --cost
// --deterministic --charge-input --check.
struct MachineOption : MachineText {
  void Add(Command& verb);
};

// The help of --memory, and its problem with an empty value.
extern const char* const kMemoryHelp;
inline constexpr const char* kNoMemory = "no size; leave --memory out for all of the device's";

// Returns the size that the text of an option says. Throws `UsageError` with `remark` at its end.
Bytes ParseSize(std::string_view option, const std::string& text, std::string_view remark = "");

// What --check says on standard error when `what` has no violation.
std::string CheckedRemark(std::string_view what);

// Results of policies in one scenario.
struct ScenarioResults {
  const Scenario* scenario;
  std::vector<RunResult> results;
};

// The results in the chosen format. The table of each scenario stands for itself.
std::string FormatResults(std::span<const ScenarioResults> groups, const FormatOption& format);

// Every built-in policy, in both variants where it has the parameter `algo` and does not choose by
// itself; those for inference, and for recordings, only where the mode says so ("recorded").
std::vector<std::string> AllPolicies(std::string_view mode);

// The texts behind `--policy help`, `--device help` and `--allocator help`, and `spillway list`.
std::string DescribePolicies();
// Those that a specification ending in "help" asks for: "help", "./mine.so:help", "vdnn-all:help".
std::string DescribePolicies(const std::string& specification);
std::string DescribeDevices();
std::string DescribeAllocators();
std::string DescribeNetworks();
std::string DescribePresets();

// Returns the `Option::describe` of the option of that name, which is empty if it has none.
std::function<std::string(const std::string&)> DescriptionOf(std::string_view option);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_
