// spillway: the command line. Parses, dispatches to a verb and maps errors to exit codes.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <system_error>

#include "experiments/cli/session.h"
#include "experiments/cli/verbs.h"
#include "sim/core/error.h"

namespace spillway::cli {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok; 1 a negative answer (does not fit, out of tolerance); 2 usage; 3 bad "
    "input;\n"
    "4 policy or invariant failure; 5 missing environment (no GPU); 130 interrupted.\n"
    "Help on one verb: spillway VERB --help";

int Fail(int exit_code, const std::exception& error) {
  fmt::print(stderr, "spillway: {}\n", error.what());
  return exit_code;
}

int CannotWrite() {
  fmt::print(stderr, "spillway: cannot write the output\n");
  return kBadInput;
}

int Execute(Session& session) {
  CLI::App app{
      "Spillway: under this memory policy, on this GPU, does this network fit, how fast is it, and "
      "why?",
      "spillway"};
  app.set_version_flag("--version", "spillway " SPILLWAY_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  int exit_code = kOk;
  AddRun(app, exit_code, session);
  AddCompare(app, exit_code, session);
  AddLimit(app, exit_code, session);
  AddList(app, exit_code);
  AddTrace(app, exit_code, session);
  AddRecord(app, exit_code, session);
  AddValidate(app, exit_code, session);
  AddCalibrate(app, exit_code, session);
  AddReproduce(app, exit_code, session);
  AddReplay(app, exit_code, session);
  AddNewPolicy(app, exit_code, session);
  AddReplayRun(app, exit_code, session, Execute);
  AddDoctor(app, exit_code);
  AddCompletion(app, exit_code);
  try {
    // CLI11 takes a vector from its end.
    app.parse(std::vector<std::string>(session.arguments().rbegin(), session.arguments().rend()));
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "spillway: {}\nRun with --help for more information.\n", error.what());
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
  spillway::cli::Interrupts interrupts;
  spillway::cli::Session session({argv + 1, argv + argc}, interrupts);
  return spillway::cli::Execute(session);
}
