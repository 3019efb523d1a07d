// spillway: the command line. Parses, dispatches to a verb and maps errors to exit codes.

#include <fmt/format.h>

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "experiments/cli/frame/commit.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "policies/plugin/crash.h"
#include "traces/base/error.h"

namespace spillway::cli {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok; 1 a negative answer (does not fit, out of tolerance); 2 usage; 3 bad "
    "input;\n"
    "4 policy or invariant failure; 5 missing environment (no GPU); 130 interrupted.\n"
    "Help on one verb: spillway help VERB";

int Fail(int exit_code, const std::exception& error) {
  fmt::print(stderr, "spillway: {}\n", Printable(error.what()));
  return exit_code;
}

int CannotWrite() {
  fmt::print(stderr, "spillway: cannot write the output\n");
  return kBadInput;
}

// Throws `UsageError` for a word in the place of a verb that is none; CLI11 would say that one is
// missing.
void CheckVerbs(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    const std::vector<const CLI::App*> verbs = at->get_subcommands({});
    if (at->get_require_subcommand_min() == 0 || word.starts_with('-')) return;
    const auto named = [&](const CLI::App* verb) { return verb->get_name() == word; };
    const auto found = std::find_if(verbs.begin(), verbs.end(), named);
    if (found == verbs.end()) {
      const auto is_argument = [](const CLI::Option* option) { return option->get_positional(); };
      if (!at->get_options(is_argument).empty()) return;  // it may be that
      std::vector<std::string> names;
      for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
      throw UsageError(UnknownName("verb", word, names));
    }
    at = *found;
  }
}

// A session looks for it among its arguments: here it is declared.
void AddQuiet(CLI::App& app) {
  const std::string help = "Nothing but errors on standard error";
  const auto verbs = app.get_subcommands([](CLI::App*) { return true; });
  for (CLI::App* verb : verbs) {
    verb->add_flag("--quiet", help);
    AddQuiet(*verb);
  }
}

int Execute(Session& session) {
  CLI::App app{
      "Spillway: under this memory policy, on this GPU, does this network fit, how fast is it, and "
      "why?",
      "spillway"};
  app.set_version_flag("--version",
                       fmt::format("spillway {} (commit {})", SPILLWAY_VERSION, kCommit));
  app.require_subcommand(1);
  app.footer(kFooter);
  int exit_code = kOk;
  AddRun(app, exit_code, session);
  AddCompare(app, exit_code, session);
  AddSweep(app, exit_code, session);
  AddLimit(app, exit_code, session);
  AddFit(app, exit_code, session);
  AddList(app, exit_code, session);
  AddTrace(app, exit_code, session);
  AddReport(app, exit_code, session);
  AddRecord(app, exit_code, session);
  AddStore(app, exit_code, session);
  AddValidate(app, exit_code, session);
  AddCalibrate(app, exit_code, session);
  AddReproduce(app, exit_code, session);
  AddReplay(app, exit_code, session);
  AddNewPolicy(app, exit_code, session);
  AddReplayRun(app, exit_code, session, Execute);
  AddDoctor(app, exit_code, session);
  AddCompletion(app, exit_code);
  AddHelp(app, exit_code, session);
  AddQuiet(app);
  try {
    CheckVerbs(app, session.arguments());
    // CLI11 takes a vector from its end.
    app.parse(std::vector<std::string>(session.arguments().rbegin(), session.arguments().rend()));
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "spillway: {}\nRun with --help for more information.\n",
               Printable(error.what()));
    return kUsage;
  } catch (const UsageError& error) {
    return Fail(kUsage, error);
  } catch (const InputError& error) {
    return Fail(kBadInput, error);
  } catch (const PolicyError& error) {
    return Fail(kPolicyFailure, error);
  } catch (const EnvironmentError& error) {
    return Fail(kMissingEnvironment, error);
  } catch (const std::exception& error) {  // other errors, and memory that ran out here
    // Of long output fmt notices at once that it cannot be written.
    if (std::ferror(stdout) == 0) return Fail(kPolicyFailure, error);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return CannotWrite();
  }
  return exit_code;
}

}  // namespace
}  // namespace spillway::cli

int main(int argc, char** argv) {
  // A run takes and gives back much memory many times: the system need not fill it with zeros each
  // time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  spillway::NameCrashes();
  spillway::cli::Interrupts interrupts;
  spillway::cli::Session session({argv + 1, argv + argc}, interrupts);
  return spillway::cli::Execute(session);
}
