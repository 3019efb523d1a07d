// A plugin that registers no policy.
#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::PolicyRegistry&) {}
constexpr spillway::PolicyPlugin kPlugin{.register_policies = Register};
}  // namespace

const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
