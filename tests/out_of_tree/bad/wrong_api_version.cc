// A plugin from the future; its register function must never be called.
#include <cstdlib>

#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::policies::PolicyRegistry&) { std::abort(); }
constexpr spillway::policies::PolicyPlugin kPlugin{.api_version = 999,
                                                   .register_policies = Register};
}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
