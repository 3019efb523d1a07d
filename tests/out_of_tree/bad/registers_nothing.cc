// A plugin that registers no policy.
#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::policies::PolicyRegistry&) {}
constexpr spillway::policies::PolicyPlugin kPlugin{.register_policies = Register};
}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
