// A policy that runs a recorded trace as the framework ran it. It moves nothing, and keeps each
// tensor for as long as the program held it, not only until its last use. So it needs as much
// memory as the framework did.

#include <memory>
#include <string_view>

#include "policies/recorded/as_recorded.h"
#include "policies/registry.h"
#include "traces/base/error.h"
#include "traces/liveness.h"

namespace spillway::policies {

Trace HeldAsRecorded(Trace trace) {
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const std::optional<OpId> until = trace.tensors[i].held_until;
    if (until && liveness.FirstUse(id) != until) trace.ops[Index(*until)].inputs.push_back(id);
  }
  return trace;
}

namespace {

class AsRecordedPolicy final : public Policy {
 public:
  Preparation Prepare(const Trace& trace, const Device& device, const CostModel&, const TrialRun&,
                      const std::string&) override {
    if (!trace.recording) {
      throw UsageError("policy 'as-recorded' runs traces of recorded programs only, and '" +
                       trace.name + "' is none: see `spillway trace import --help`");
    }
    return {device.memory, HeldAsRecorded(trace)};
  }
};

std::unique_ptr<Policy> MakeAsRecordedPolicy(Params&) {
  return std::make_unique<AsRecordedPolicy>();
}

}  // namespace

void RegisterAsRecorded(PolicyRegistry& registry) {
  registry.Add("as-recorded",
               "tensors held for as long as the recorded program held them, nothing moved",
               MakeAsRecordedPolicy, {.for_recordings = true});
}

}  // namespace spillway::policies
