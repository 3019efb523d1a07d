// The verb that a worker runs for one case of another process, see experiments/run/isolation.h.

#include <string_view>

#include "experiments/cli/frame/arguments.h"
#include "experiments/cli/frame/case_options.h"
#include "experiments/cli/frame/session.h"
#include "experiments/cli/frame/verbs.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/execute.h"
#include "experiments/run/inputs.h"
#include "experiments/run/isolation.h"
#include "experiments/run/prepare.h"

namespace spillway::cli {
namespace {

int Execute(const Case& given, Session& session) {
  if (given.workload.empty()) {
    given.policy.Make();
    return kOk;
  }
  Case asked = given;
  if (asked.backend != kSimulator) asked.iterations = 1;
  BackendFactories backends;
  backends.Add("cpu", CpuFactory());
  const Inputs inputs(asked);
  return session.Finish(SaveOutcome(RunCase(asked, inputs, backends), inputs.trace()), kOk);
}

}  // namespace

void AddCase(Command& program, Session& session) {
  Command& verb = program.Add(kCaseVerb, "Run a case for another process");
  Case& asked = verb.Runs(Execute, session);
  for (const CaseKey& key : CaseKeys()) AddCaseOptions(verb, {std::string_view(key.name)}, asked);
  verb.Declared("workload").required = false;
}

}  // namespace spillway::cli
