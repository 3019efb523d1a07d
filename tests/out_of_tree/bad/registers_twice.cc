// A plugin with two policies of the same name.
#include "policies/plugin/plugin.h"
#include "policies/registry.h"

namespace {
std::unique_ptr<spillway::sim::Policy> Make(spillway::traces::Params&) { return nullptr; }
void Register(spillway::policies::PolicyRegistry& registry) {
  registry.Add("twin", "the first", Make);
  registry.Add("twin", "the second", Make);
}
constexpr spillway::policies::PolicyPlugin kPlugin{.register_policies = Register};
}  // namespace

const spillway::policies::PolicyPlugin* SpillwayPolicyPlugin() { return &kPlugin; }
