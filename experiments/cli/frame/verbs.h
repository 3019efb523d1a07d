// The verbs of the command line, one file each.
//
// Each function declares its verb. A verb returns 0 if all is well and 1 for a negative answer; the
// other exit codes come from exceptions.

#ifndef SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_
#define SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_

namespace spillway::cli {

class Command;
class Session;

inline constexpr int kOk = 0;
inline constexpr int kNegative = 1;
inline constexpr int kUsage = 2;
inline constexpr int kBadInput = 3;
inline constexpr int kPolicyFailure = 4;
inline constexpr int kMissingEnvironment = 5;

void AddRun(Command& program, Session& session);
void AddCompare(Command& program, Session& session);
void AddLimit(Command& program, Session& session);
void AddFit(Command& program, Session& session);
void AddPlan(Command& program, Session& session);
void AddList(Command& program, Session& session);
void AddTrace(Command& program, Session& session);
void AddRecord(Command& program, Session& session);
void AddStore(Command& program, Session& session);
void AddSweep(Command& program, Session& session);
void AddValidate(Command& program, Session& session);
void AddCalibrate(Command& program, Session& session);
void AddReproduce(Command& program, Session& session);
void AddReport(Command& program, Session& session);
void AddReplay(Command& program, Session& session);
void AddNewDevice(Command& program, Session& session);
void AddNewPolicy(Command& program, Session& session);
void AddReplayRun(Command& program, Session& session);
void AddDoctor(Command& program, Session& session);
void AddCompletion(Command& program, Session& session);
void AddHelp(Command& program, Session& session);
void AddCase(Command& program, Session& session);  // only in a worker

// Executes the arguments of a session as a command line. Returns the exit code; errors are printed
// on standard error.
int RunSession(Session& session);

}  // namespace spillway::cli

#endif  // SPILLWAY_EXPERIMENTS_CLI_FRAME_VERBS_H_
