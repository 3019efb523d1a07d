// A worker is a process of this program that runs one command for another process of it, the
// parent, which keeps running however the worker ends.
//
// A worker is started afresh with the arguments of a command, never forked from running threads. It
// replies with the results of the command and writes no files. If it crashes, ends by itself or
// takes too long, the parent learns in which hook of which policy (policies/plugin/crash.h). A
// worker dies with its parent, and leaves SIGINT and SIGTERM to it. The reply passes through shared
// memory, so that its size does not matter. Standard output and error are the parent's.

#ifndef SPILLWAY_EXPERIMENTS_RUN_WORKER_H_
#define SPILLWAY_EXPERIMENTS_RUN_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "traces/base/units.h"

namespace spillway::lab {

// A file with its contents.
struct OutputFile {
  std::string option;  // the option that asked for it: "--output"
  std::string path;
  std::string contents;
};

// The results of a command that prints nothing and writes no files.
struct CommandResults {
  int exit_code = 0;
  std::string error;  // the message of the error that ended the command; empty if there was none
  std::string text;   // the text for standard output, or the bytes that the parent asked for
  std::vector<OutputFile> files;
  std::string manifest;  // the manifest of `files`
};

// Runs the program with `arguments` in a worker for at most `limit`, and waits for it. Throws the
// error that ended the command; `PolicyError` if the worker ended without a reply: the message
// names the policy, or `whose` ("policy 'x'") if it entered no hook, and the hook and the op; and
// `EnvironmentError` if no process can be started. Safe to call from several threads.
CommandResults RunInWorker(const std::vector<std::string>& arguments, Duration limit,
                           const std::string& whose);

// The side of the worker.
class Worker {
 public:
  // Returns the worker that this process is, or nullptr if `RunInWorker` did not start it.
  // REQUIRES: the process has no other thread yet.
  static std::unique_ptr<const Worker> OfThisProcess();

  // Sends the results to the parent and ends the process. Nothing else runs, neither handlers of
  // `atexit` nor destructors.
  [[noreturn]] void Reply(const CommandResults& results) const;

 private:
  struct Page;  // the shared memory before the reply
  Worker(int file, Page* page) : file_(file), page_(page) {}
  friend CommandResults RunInWorker(const std::vector<std::string>&, Duration, const std::string&);

  int file_;
  Page* page_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_WORKER_H_
