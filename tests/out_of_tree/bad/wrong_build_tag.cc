// A plugin from another compiler; its register function must never be called.
#include <cstdlib>

#include "policies/plugin/plugin.h"

namespace {
void Register(spillway::PolicyRegistry&) { std::abort(); }
constexpr spillway::PolicyPlugin kPlugin{.build_tag = "another compiler",
                                         .register_policies = Register};
}  // namespace

const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
