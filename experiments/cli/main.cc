// spillway: the program. Runs a verb and maps errors to exit codes.

#include <fmt/format.h>

#include <malloc.h>

#include <cstdio>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/commit.h"
#include "experiments/cli/frame/descriptions.h"
#include "experiments/cli/frame/help_text.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/isolation.h"
#include "policies/plugin/crash.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok; 1 a negative answer (does not fit, out of tolerance); 2 usage; 3 bad "
    "input; 4 policy or invariant failure; 5 missing environment (no GPU); 130 interrupted.\n"
    "Help on one verb: spillway help VERB";

// Verbs that belong together, in the order in which they are used.
struct VerbGroup {
  const char* heading;
  std::vector<void (*)(Command& program, Session& session)> verbs;
};
const VerbGroup kVerbs[] = {
    {"Workloads and policies", {AddTrace, AddList, AddNewDevice, AddNewPolicy}},
    {"Measurements on this machine's GPU", {AddRecord, AddStore, AddCalibrate, AddValidate}},
    {"Answers", {AddFit, AddRun, AddCompare, AddLimit, AddPlan, AddReplay}},
    {"Many results", {AddSweep, AddReport, AddReproduce, AddReplayRun}},
    {"The program", {AddDoctor, AddCompletion, AddHelp}},
};

int CannotWrite() {
  fmt::print(stderr, "spillway: cannot write the output\n");
  return kBadInput;
}

// Adds to every verb --quiet, which a session looks for among its arguments, and to options the
// descriptions of their values.
void Complete(Command& command) {
  for (Command& verb : command.verbs) {
    verb.Flag("--quiet", verb.Keep<bool>(), "Nothing but errors on standard error");
    for (Option& option : verb.options) {
      if (!option.describe) option.describe = DescriptionOf(option.name());
    }
    Complete(verb);
  }
}

}  // namespace

int RunSession(Session& session) {
  Command program(
      "spillway",
      "Spillway: under this memory policy, on this GPU, does this network fit, how fast is it, and "
      "why?");
  program.Version(fmt::format("spillway {} (commit {})", SPILLWAY_VERSION, kCommit));
  program.help_text = HelpText;
  program.footer = kFooter;
  program.examples = {"fit vgg16:128 --device titan_xp", "help compare"};
  for (const VerbGroup& group : kVerbs) {
    const size_t first = program.verbs.size();
    for (const auto add : group.verbs) add(program, session);
    std::next(program.verbs.begin(), first)->heading = group.heading;
  }
  if (session.captures()) AddCase(program, session);
  Complete(program);
  int exit_code = kOk;
  try {
    exit_code = program.Execute(session.arguments());
  } catch (const UsageError& error) {
    return session.Fail(kUsage, error.what());
  } catch (const InputError& error) {
    return session.Fail(kBadInput, error.what());
  } catch (const PolicyError& error) {
    return session.Fail(kPolicyFailure, error.what());
  } catch (const EnvironmentError& error) {
    return session.Fail(kMissingEnvironment, error.what());
  } catch (const std::exception& error) {  // other errors, such as no memory on this machine
    // fmt throws if standard output cannot be written; the message for it follows below.
    if (std::ferror(stdout) == 0) return session.Fail(kPolicyFailure, error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return CannotWrite();
  }
  return exit_code;
}

}  // namespace spillway::cli

int main(int argc, char** argv) {
  // A run allocates and frees much memory many times. With these thresholds the memory stays with
  // the process, and the system need not fill it with zeros each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto worker = spillway::lab::Worker::OfThisProcess()) {
    spillway::cli::Interrupts interrupts;
    spillway::lab::CommandResults results;
    spillway::cli::Session session(arguments, interrupts, &results);
    results.exit_code = spillway::cli::RunSession(session);
    worker->Reply(results);
  }
  spillway::lab::IsolatePlugins();
  spillway::policies::NameCrashes();
  spillway::cli::Interrupts interrupts;
  spillway::cli::Session session(arguments, interrupts);
  return spillway::cli::RunSession(session);
}
