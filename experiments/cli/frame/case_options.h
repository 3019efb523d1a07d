// The options for the parts of a case, with the same names, defaults and help in every verb.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_OPTIONS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_OPTIONS_H_

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "experiments/cli/frame/arguments.h"
#include "experiments/run/case_keys.h"
#include "traces/base/units.h"

namespace spillway::cli {

// The keys of a case that say where it runs.
inline constexpr std::string_view kMachineKeys[] = {
    "device",        "pool",         "allocator", "compress", "cost",
    "deterministic", "charge-input", "check",     "timeout",  "in-process"};

// Declares an option for each of these keys of a case, as `CaseKeys` describes them; "workload" is
// an argument and required. The parse sets the values that are given. REQUIRES: `asked` lives as
// long as the verb.
void AddCaseOptions(Command& verb, std::span<const std::string_view> keys, Case& asked);
void AddCaseOptions(Command& verb, std::initializer_list<std::string_view> keys, Case& asked);

// Returns the size that `text`, the value of `option`, says. Throws `UsageError`, with `remark` at
// the end of the message, if the text is no size.
Bytes ParseSize(std::string_view option, const std::string& text, std::string_view remark = "");

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_CASE_OPTIONS_H_
