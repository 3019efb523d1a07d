// Options that several verbs share, with the same names, defaults and help everywhere.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/output/run_result.h"
#include "experiments/output/view.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/inputs.h"
#include "experiments/run/workload_text.h"

namespace spillway::cli {

// --format table|csv|json|markdown|latex --wide --columns, and --pivot --by --value where several
// cases are rows
struct FormatOption {
  std::string text = "table";
  bool wide = false;
  std::vector<std::string> columns;
  Pivot pivot;
  const Option* option = nullptr;
  bool to_file = false;
  std::string other_ending;  // an ending of -o that implies no format

  void Add(Command& verb);
  void AddPivot(Command& verb);
  // Chooses the format that the name of the file `output` implies; an empty name stands for
  // standard output. Throws `UsageError` if the name has an unknown ending, or if --format was
  // given and says another one.
  void Follow(const std::string& output);
  // Throws `UsageError` if columns or a pivot are chosen for a format that has all columns, or both
  // are chosen.
  View view() const;
  // Returns the largest width of a table: `TerminalWidth`, or 0 (no limit) for a file and with
  // --wide.
  size_t width() const;
};

// Options for several policies: --policy --jobs.
struct PoliciesOption {
  std::vector<std::string> given;
  int jobs = 0;  // threads; 0: one per core

  void Add(Command& verb);
  // Returns the given policies, or all of the mode, as `ModeOf` names it, if none is given.
  std::vector<std::string> policies(std::string_view mode) const;
  // Calls `work` for each number below `count`, on as many threads as --jobs says.
  void ForEach(size_t count, const std::function<void(size_t)>& work) const;
};

// Declares -o, --output of a verb that prints its results if the path is empty or "-". The parse
// leaves `path` empty for "-", calls `format.Follow` and checks that the file can be written.
// REQUIRES: `path` and `format` live as long as the verb.
void AddOutput(Command& verb, std::string& path, FormatOption& format,
               const std::string& remark = "");

// Throws `UsageError` if the path has an ending that is not among `valid` (".json"), which may have
// ".zst" behind it. A path without an ending is valid.
void CheckEnding(const std::filesystem::path& path, const std::vector<std::string>& valid);

// The keys of a case that say where it runs.
inline constexpr std::string_view kMachineKeys[] = {
    "device",        "pool",         "allocator", "compress", "cost",
    "deterministic", "charge-input", "check",     "timeout",  "in-process"};

// Declares an option for each of these keys of a case, as `CaseKeys` describes them; "workload" is
// an argument and required. The parse sets the values that are given. REQUIRES: `asked` lives as
// long as the verb.
void AddCaseOptions(Command& verb, std::span<const std::string_view> keys, Case& asked);
void AddCaseOptions(Command& verb, std::initializer_list<std::string_view> keys, Case& asked);

// Returns the arithmetic with which a backend computes the trace's products in float32: "tf32" if
// the trace says so, otherwise `given`, the value of --math.
std::string MathFor(const Trace& trace, const std::string& given);

// Returns "training" or "inference".
std::string_view ModeOf(const Case& asked);
// Returns "recorded" if all traces are recordings, "inference" if none trains, else "training".
std::string_view ModeOf(std::span<const std::shared_ptr<const Trace>> traces);

// Returns the size that `text`, the value of `option`, says. Throws `UsageError`, with `remark` at
// the end of the message, if the text is no size.
Bytes ParseSize(std::string_view option, const std::string& text, std::string_view remark = "");

// Returns the remark of --check if the checker found no violation in `what`.
std::string CheckedRemark(std::string_view what);

// Results of policies for one case, whose own policy does not matter.
struct CaseResults {
  LoadedCase loaded;
  std::vector<RunResult> results;
};

// Returns the results in the chosen format. A table format has one table for each case.
std::string FormatResults(std::span<const CaseResults> groups, const FormatOption& format);

// Returns the specification of every built-in policy that does not decide by a plan. A policy whose
// parameter `algo` is not "auto" by default stands twice, with `algo=memory` and
// `algo=performance`, but once if the mode is "recorded": a recorded op has one kernel. Policies
// for inference are there if the mode is "inference", policies for recordings if it is "recorded".
std::vector<std::string> AllPolicies(std::string_view mode);

// Return the texts of `spillway list`, and of options whose value is "help".
std::string DescribePolicies();
// Returns the description of the policies that a specification ending in "help" asks for: "help",
// "./mine.so:help", "vdnn-all:help".
std::string DescribePolicies(const std::string& specification);
std::string DescribeDevices();
std::string DescribeAllocators();
std::string DescribeNetworks();
std::string DescribePresets();
std::string DescribeWorkloads();

// Returns the `Option::describe` of the option of that name, which is empty if it has none.
std::function<std::string(const std::string&)> DescriptionOf(std::string_view option);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_OPTIONS_H_
