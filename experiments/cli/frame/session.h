// One invocation of the command line: its arguments, the place of its output, and the files that it
// writes.
//
// Verbs hand over whole texts. A session prints them or writes them to files, each with its
// manifest beside it. Under `spillway replay-run` a session keeps the files in memory and prints
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

// A file that an option of a verb asks for.
struct Export {
  std::string option;  // "--export-trace"
  std::string path;    // empty: not asked for
  std::function<std::string(const Manifest&)> contents;
};

// A file with its contents.
struct OutputFile {
  std::string option;  // "--output"
  std::string path;
  std::string contents;
};

class Session {
 public:
  // `captured` takes the files of a replayed run; it is nullptr in an ordinary run.
  Session(std::vector<std::string> arguments, Interrupts& interrupts,
          std::vector<OutputFile>* captured = nullptr);

  const std::vector<std::string>& arguments() const { return arguments_; }
  Interrupts& interrupts() { return interrupts_; }
  ProgressBar& progress() { return progress_; }
  // Returns false if files stay in memory.
  bool writes() const { return captured_ == nullptr; }

  // Prints `Printable(text)` on standard output.
  void Print(std::string_view text) const;
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

 private:
  void Write(const std::vector<OutputFile>& files, Manifest manifest);

  std::vector<std::string> arguments_;
  Interrupts& interrupts_;
  std::vector<OutputFile>* captured_;
  const bool quiet_;
  ProgressBar progress_;
};

// Checks policies before any work: throws `UsageError` if a name, a parameter or a plugin is wrong.
// A policy that cannot be made passes; its row will say so. Prints a remark if policies that are
// made for inference get training.
void CheckPolicies(const std::vector<std::string>& policies, bool training, const Session& session);

// Creates the directory and those above it. Throws `InputError` if that fails.
void CreateDirectory(const std::filesystem::path& path);

// Returns the values of all keys of the case, as they were asked for.
Settings SettingsOf(const Case& asked);

// Adds configuration and inputs of the cases to the manifest: for each key its values, with what
// presets, modes, memories and costs stand for.
void DescribeCases(const std::vector<LoadedCase>& cases, Manifest& manifest);

// Return the compiler that built the program, and the libraries that the program was built with.
std::string CompilerVersion();
Settings LibraryVersions();

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_SESSION_H_
