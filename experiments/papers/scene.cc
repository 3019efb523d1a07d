#include "experiments/papers/scene.h"

#include "experiments/run/catalogue.h"
#include "traces/base/error.h"
#include "traces/lowering/lowering.h"

namespace spillway {
namespace {

// Returns the cost model of `source`. With "auto", a recorded table that lacks a kernel of the
// trace is not used: a paper's preset may have kernels that the table's preset lacks.
std::unique_ptr<const CostModel> CostFor(const std::string& source, const Trace& trace,
                                         const Device& device) {
  std::unique_ptr<const CostModel> cost = LoadCost(source, trace, device).model;
  try {
    for (const Op& op : trace.ops) {
      for (size_t slot = 0; slot < op.slots.size(); ++slot) cost->Kernels(op, slot, op.batch);
    }
  } catch (const InputError&) {
    if (source != "auto") throw;
    return LoadCost("roofline", trace, device).model;
  }
  return cost;
}

}  // namespace

Scene::Scene(const Workload& workload, const std::string& preset, const PaperMachine& machine,
             bool training)
    : trace(LowerNetwork(BuildNetwork(workload.network), {workload.batch, preset, training})),
      device(LoadDevice(machine.device)),
      model(CostFor(machine.cost, trace, device)) {}

Prepared Scene::In(Bytes memory, const std::string& allocator) const {
  return {Borrow(trace), device, Borrow(cost), memory, allocator};
}

Report Scene::Run(const std::string& policy, Bytes memory, const std::string& allocator) const {
  return Play(In(memory, allocator), policy);
}

Report Play(Prepared run, const std::string& policy) {
  run.policy = policy;
  return spillway::Run(run).report;
}

}  // namespace spillway
