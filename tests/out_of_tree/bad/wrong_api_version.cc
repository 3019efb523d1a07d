// A plugin from the future; its register function must never be called.
#include <cstdlib>

#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::PolicyRegistry&) { std::abort(); }
constexpr spillway::PolicyPlugin kPlugin{.api_version = 999, .register_policies = Register};
}  // namespace

const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
