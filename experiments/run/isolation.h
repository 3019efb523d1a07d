// Decides which runs get a process of their own, and runs them there.
//
// A run of a plugin's policy gets a fresh process, unless the case says `in_process`: then a crash,
// `exit` or an endless loop of the plugin costs this run and no other. The program that calls
// `IsolatePlugins` never loads the plugin itself. Built-in policies run in the process that asks.

#ifndef SPILLWAY_EXPERIMENTS_RUN_ISOLATION_H_
#define SPILLWAY_EXPERIMENTS_RUN_ISOLATION_H_

#include <string>

#include "experiments/run/case.h"
#include "experiments/run/inputs.h"
#include "experiments/run/prepared.h"
#include "experiments/run/worker.h"

namespace spillway::lab {

// The verb that runs a case for another process of the program: `case WORKLOAD OPTION...`, with
// `ArgumentsOf`, has `SaveOutcome` as its text. Without a workload it only makes the policy.
inline constexpr const char* kCaseVerb = "case";

// Lets this process start others for the runs of plugins. Without this call all runs stay in the
// process, as in programs that use the library. REQUIRES: the program has the verb `kCaseVerb`, and
// begins with `Worker::OfThisProcess`.
void IsolatePlugins();

// Returns true iff runs of the case get a process of their own.
bool IsIsolated(const Case& asked);

// Runs the case as `RunCase` does, in a process of its own. `inputs` are those of the case.
// REQUIRES: IsIsolated(asked); the case executes for one iteration, if at all.
Outcome RunIsolated(const Case& asked, const Inputs& inputs);

// Runs a command for the case in a process of its own, and returns its results. Throws as
// `RunInWorker`.
CommandResults RunIsolated(const Case& asked, const std::vector<std::string>& arguments);

// Throws `UsageError` or `InputError` if the policy of the case has a wrong name or parameter, or
// is in a file that is no plugin. Other failures of a policy are left to its runs.
void CheckPolicy(const Case& asked);

// Returns the outcome of a run as bytes for another process. `given` is the trace of its inputs,
// which also stands for no trace.
std::string SaveOutcome(const Outcome& outcome, const std::shared_ptr<const Trace>& given);
// Returns the outcome whose bytes these are. `given` is equal to the trace that they were made for.
Outcome LoadOutcome(std::string bytes, const std::shared_ptr<const Trace>& given);

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_RUN_ISOLATION_H_
