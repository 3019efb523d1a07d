// A plugin with two policies of the same name.
#include "policies/plugin/plugin.h"
#include "policies/registry.h"

namespace {
std::unique_ptr<spillway::Policy> Make(spillway::Params&) { return nullptr; }
void Register(spillway::PolicyRegistry& registry) {
  registry.Add("twin", "the first", Make);
  registry.Add("twin", "the second", Make);
}
constexpr spillway::PolicyPlugin kPlugin{.register_policies = Register};
}  // namespace

const spillway::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
