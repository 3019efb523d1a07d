// One invocation of the command line: its arguments, where its output goes, and the files it
// writes.
//
// Verbs hand over whole texts; a session prints them or writes them, each file with its manifest
// beside it. Under `spillway replay-run` a session keeps the files in memory instead and prints
// nothing.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/interrupts.h"
#include "experiments/cli/frame/options.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/output/manifest.h"

namespace spillway::cli {

// A file that a verb can be asked for, by an option.
struct Export {
  std::string option;  // "--export-trace"
  std::string path;    // empty: not asked for
  std::function<std::string(const Manifest&)> contents;
};

// A file that a verb was asked for.
struct OutputFile {
  std::string option;  // "--output"
  std::string path;
  std::string contents;
};

class Session {
 public:
  // `captured` takes the files of a replayed run; nullptr in an ordinary one.
  Session(std::vector<std::string> arguments, Interrupts& interrupts,
          std::vector<OutputFile>* captured = nullptr);

  const std::vector<std::string>& arguments() const { return arguments_; }
  Interrupts& interrupts() { return interrupts_; }
  ProgressBar& progress() { return progress_; }

  // Prints data on standard output, as `Printable`.
  void Print(std::string_view text) const;
  // Prints a remark on standard error, unless --quiet is given.
  void Remark(std::string_view line) const;

  // A manifest of this invocation, without configuration and inputs.
  Manifest NewManifest() const;

  // The end of a verb: writes the exports, and its results to the file `output`, or prints them
  // where that is empty. Each file is written whole, then its manifest, which `describe` has
  // completed with configuration and inputs. Where the path is a symbolic link, the file that it
  // names is written, and has its manifest beside it. Nobody else's session writes to the same
  // directories meanwhile, so that a file and its manifest are of one run. Returns `exit_code`.
  // Throws `InputError` if a file cannot be written, or if two have one path.
  int Finish(std::string results, const std::string& output, const std::vector<Export>& exports,
             int exit_code, const std::function<void(Manifest&)>& describe);
  // Of a verb that writes no files.
  int Finish(std::string_view results, int exit_code) const;

 private:
  void Write(const std::vector<OutputFile>& files, Manifest manifest);

  std::vector<std::string> arguments_;
  Interrupts& interrupts_;
  std::vector<OutputFile>* captured_;
  const bool quiet_;
  ProgressBar progress_;
};

// Creates the directory and those above it. Throws `InputError` if that fails.
void CreateDirectory(const std::filesystem::path& path);

// A workload that was loaded, by the text that named it.
struct NamedScenario {
  std::string workload;
  const Scenario* scenario;
};

// Notes what runs of policies on workloads depend on. REQUIRES: all are on the same machine but for
// its memory.
void DescribeRun(const std::vector<NamedScenario>& scenarios, const MachineOption& machine,
                 const std::vector<std::string>& policies, Manifest& manifest);

// The compiler that built the program, and the libraries that it was built with.
std::string CompilerVersion();
Settings LibraryVersions();

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_
