#include "experiments/reproduce/scene.h"

#include "experiments/run/catalogue.h"
#include "policies/registry.h"
#include "traces/lowering/lowering.h"

namespace spillway {

Scene::Scene(const Workload& workload, const std::string& preset, const std::string& device_name,
             bool training)
    : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, preset, training})),
      device(LoadDevice(device_name)),
      cost(device) {}

Setup Scene::In(Bytes memory, const std::string& allocator) const {
  return {Borrow(trace), device, Borrow<CostModel>(cost), memory, allocator};
}

Report Scene::Run(const std::string& policy, Bytes memory, const std::string& allocator) const {
  return Play(In(memory, allocator), policy);
}

Report Play(const Setup& setup, const std::string& policy) {
  PolicyRegistry registry;
  RegisterBuiltinPolicies(registry);
  return Simulate(setup, *registry.Make(policy)).report;
}

}  // namespace spillway
