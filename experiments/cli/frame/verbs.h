// The verbs of the command line, one file each.
//
// Each function adds its subcommand to the application; running it sets the exit code: 0 ok, 1 a
// negative answer, and by exception 2 usage, 3 bad input, 4 policy or invariant failure, 5 missing
// environment.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_

#include <CLI/CLI.hpp>
#include <functional>

namespace spillway::cli {

class Session;

inline constexpr int kOk = 0;
inline constexpr int kNegative = 1;
inline constexpr int kUsage = 2;
inline constexpr int kBadInput = 3;
inline constexpr int kPolicyFailure = 4;
inline constexpr int kMissingEnvironment = 5;

void AddRun(CLI::App& app, int& exit_code, Session& session);
void AddCompare(CLI::App& app, int& exit_code, Session& session);
void AddLimit(CLI::App& app, int& exit_code, Session& session);
void AddFit(CLI::App& app, int& exit_code, Session& session);
void AddList(CLI::App& app, int& exit_code, Session& session);
void AddTrace(CLI::App& app, int& exit_code, Session& session);
void AddRecord(CLI::App& app, int& exit_code, Session& session);
void AddStore(CLI::App& app, int& exit_code, Session& session);
void AddSweep(CLI::App& app, int& exit_code, Session& session);
void AddValidate(CLI::App& app, int& exit_code, Session& session);
void AddCalibrate(CLI::App& app, int& exit_code, Session& session);
void AddReproduce(CLI::App& app, int& exit_code, Session& session);
void AddReport(CLI::App& app, int& exit_code, Session& session);
void AddReplay(CLI::App& app, int& exit_code, Session& session);
void AddNewPolicy(CLI::App& app, int& exit_code, Session& session);
// `run` executes another session's arguments as a command line of its own.
void AddReplayRun(CLI::App& app, int& exit_code, Session& session,
                  std::function<int(Session& other)> run);
void AddDoctor(CLI::App& app, int& exit_code, Session& session);
void AddCompletion(CLI::App& app, int& exit_code);
void AddHelp(CLI::App& app, int& exit_code, Session& session);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_
