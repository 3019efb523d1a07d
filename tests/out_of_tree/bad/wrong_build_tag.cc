// A plugin from another compiler; its register function must never be called.
#include <cstdlib>

#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::policies::PolicyRegistry&) { std::abort(); }
constexpr spillway::policies::PolicyPlugin kPlugin{.build_tag = "another compiler",
                                                   .register_policies = Register};
}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
