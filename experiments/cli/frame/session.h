// One invocation of the command line: its arguments, the place of its output, and the files that it
// writes.
//
// Verbs hand over whole texts. A session prints them or writes them to files, each with its
// manifest beside it. Under `spillway replay-run` and in a worker a session keeps texts and files
// in memory instead.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/cli/frame/case_results.h"
#include "experiments/cli/frame/interrupts.h"
#include "experiments/cli/frame/progress.h"
#include "experiments/output/manifest.h"
#include "experiments/run/isolation.h"

namespace spillway::cli {

// A file that an option of a verb asks for.
struct Export {
  std::string option;  // "--export trace"
  std::string path;    // empty: not asked for
  std::function<std::string(const Manifest&)> contents;
};

class Session {
 public:
  // `captured` takes the results of a replayed run or of a worker; it is nullptr in an ordinary
  // run.
  Session(std::vector<std::string> arguments, Interrupts& interrupts,
          CommandResults* captured = nullptr);

  const std::vector<std::string>& arguments() const { return arguments_; }
  Interrupts& interrupts() { return interrupts_; }
  ProgressBar& progress() { return progress_; }
  // Returns true iff the results are kept in memory.
  bool captures() const { return captured_ != nullptr; }

  // Prints `Printable(text)` on standard output.
  void Print(std::string_view text) const;
  // Prints the message of the error that ends the verb on standard error. Returns `exit_code`.
  int Fail(int exit_code, std::string_view message) const;
  // Prints a remark on standard error, unless --quiet is given.
  void Remark(std::string_view line) const;

  // Returns a manifest of this invocation without configuration and inputs.
  Manifest NewManifest() const;

  // Ends a verb: writes the exports that have a path, and writes the results to the file `output`
  // or prints them if `output` is empty. Each file is written whole, then its manifest, which
  // `describe` completes with configuration and inputs. If the path is a symbolic link, the file
  // that the link names is written and has its manifest beside it. Sessions of other processes do
  // not write to the same directories meanwhile, so that a file and its manifest belong to one run.
  // Returns `exit_code`. Throws `InputError` if a file cannot be written, and `UsageError` if two
  // files have the same path.
  int Finish(std::string results, const std::string& output, const std::vector<Export>& exports,
             int exit_code, const std::function<void(Manifest&)>& describe);
  // Ends a verb that writes no files: prints the results and returns `exit_code`.
  int Finish(std::string_view results, int exit_code) const;
  // Runs the whole verb in a process of its own, writes and prints its results, and returns its
  // exit code. Throws the errors of the verb; the message of a `PolicyError` begins with the
  // workload. REQUIRES: `asked` is the case of the verb, and is isolated.
  int FinishIsolated(const Case& asked);

 private:
  void Write(const std::vector<OutputFile>& files, const std::string& manifest);

  std::vector<std::string> arguments_;
  Interrupts& interrupts_;
  CommandResults* captured_;
  const bool quiet_;
  ProgressBar progress_;
};

// Calls `CheckPolicy` for the case with each of the policies, before any work, and for training
// `RemarkTraining`.
void CheckPolicies(const std::vector<std::string>& policies, const Case& asked, bool training,
                   const Session& session);
// Prints a remark if built-in policies that are made for inference are among the policies.
void RemarkTraining(const std::vector<std::string>& policies, const Session& session);

// Creates the directory and those above it. Throws `InputError` if that fails.
void CreateDirectory(const std::filesystem::path& path);

// Return the compiler that built the program, and the libraries that the program was built with.
std::string CompilerVersion();
Settings LibraryVersions();

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_
