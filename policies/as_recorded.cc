// Runs a recorded trace as the framework ran it: moves nothing, and keeps each tensor for as long
// as the program held it, not only until its last use. What it needs is what the framework needed.

#include <memory>
#include <string_view>

#include "policies/builtin.h"
#include "traces/base/error.h"

namespace spillway {
namespace {

class AsRecordedPolicy final : public Policy {
 public:
  // The op after which a storage was given back is made to use it: until then it has to stay.
  std::optional<Trace> Rewrite(const Trace& trace, const Device&, const CostModel&) override {
    if (!trace.recording) {
      throw UsageError("policy 'as-recorded' runs traces of recorded programs only, and '" +
                       trace.name + "' is none: see `spillway trace import --help`");
    }
    Trace held = trace;
    for (size_t i = 0; i < held.tensors.size(); ++i) {
      const std::optional<OpId> until = held.tensors[i].held_until;
      if (until) held.ops[Index(*until)].inputs.push_back(static_cast<TensorId>(i));
    }
    return held;
  }
};

}  // namespace

bool IsForRecordings(std::string_view policy) {
  return policy == "as-recorded" || policy == "saved-tensors";
}

std::unique_ptr<Policy> MakeAsRecordedPolicy(Params&) {
  return std::make_unique<AsRecordedPolicy>();
}

}  // namespace spillway
