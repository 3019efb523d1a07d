// The options for the form and the place of a verb's results.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_FORMAT_OPTION_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_FORMAT_OPTION_H_

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/output/pivot.h"
#include "experiments/output/view.h"

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

// Declares -o, --output of a verb that prints its results if the path is empty or "-". The parse
// leaves `path` empty for "-", calls `format.Follow` and checks that the file can be written.
// REQUIRES: `path` and `format` live as long as the verb.
void AddOutput(Command& verb, std::string& path, FormatOption& format,
               const std::string& remark = "");

// Throws `UsageError` if the path has an ending that is not among `valid` (".json"), which may have
// ".zst" behind it. A path without an ending is valid.
void CheckEnding(const std::filesystem::path& path, const std::vector<std::string>& valid);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_FORMAT_OPTION_H_
