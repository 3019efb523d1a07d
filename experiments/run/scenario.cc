#include "experiments/run/scenario.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "experiments/run/catalogue.h"
#include "experiments/run/simulate.h"
#include "policies/plan/bound.h"
#include "sim/core/check.h"
#include "sim/cost/deterministic.h"
#include "traces/base/error.h"

namespace spillway {

Setup LoadMachine(const MachineText& machine) {
  Setup setup;
  setup.device = LoadDevice(machine.device);
  for (const std::string& pool : machine.pools) AddPool(setup.device, pool);
  setup.memory = setup.device.memory;
  setup.allocator = machine.allocator;
  setup.options.charge_input = machine.charge_input;
  setup.options.iterations = machine.iterations;
  setup.backend = machine.backend;
  MakeArena(setup, Bytes(0));  // an unknown name fails early
  if (!machine.compress.empty()) {
    setup.compression =
        std::make_shared<const CompressionPlan>(ParseCompression(machine.compress, setup.device));
  }
  return setup;
}

void Verify(const std::string& whose, const Outcome& outcome) {
  const std::vector<std::string> violations = Check(*outcome.trace, outcome.report);
  if (violations.empty()) return;
  throw PolicyError(fmt::format("{}: the checker found {} violation(s):\n  {}", whose,
                                violations.size(), fmt::join(violations, "\n  ")));
}

Scenario::Scenario(Trace trace, const MachineText& machine, std::unique_ptr<const CostModel> cost)
    : Scenario(std::make_shared<const Trace>(std::move(trace)), machine, std::move(cost)) {}

Scenario::Scenario(std::shared_ptr<const Trace> trace, const MachineText& machine,
                   std::unique_ptr<const CostModel> cost)
    : setup_(LoadMachine(machine)), check_(machine.check) {
  setup_.trace = std::move(trace);
  if (!cost) cost = LoadCost(machine.cost, *setup_.trace, setup_.device);
  if (machine.deterministic) cost = std::make_unique<DeterministicCostModel>(std::move(cost));
  setup_.cost = std::move(cost);
  ideal_ = std::make_shared<const Report>(SimulateIdeal(setup_));
  *this = WithMemory(machine.memory);
}

Scenario Scenario::WithMemory(const std::string& memory) const {
  Scenario other = *this;
  other.setup_.memory_request = memory;
  other.setup_.memory =
      memory.empty() ? setup_.device.memory : ParseMemory(memory, setup_, ideal_.get());
  other.bound_ = std::make_shared<LazyBound>();
  return other;
}

Duration Scenario::joint_bound() const {
  std::call_once(bound_->once, [this] {
    bound_->bound = JointBound(*setup_.trace, *setup_.cost, setup_.memory);
  });
  return bound_->bound;
}

Outcome Scenario::Play(const std::string& specification, const BackendFactories& backends) const {
  return Play(specification, MakersOf(setup_, specification), backends);
}

Outcome Scenario::Play(const std::string& name, const std::vector<PolicyMaker>& makers,
                       const BackendFactories& backends) const {
  try {
    Outcome outcome = spillway::Play(setup_, makers, backends);
    if (check_) Verify(fmt::format("policy '{}'", name), outcome);
    return outcome;
  } catch (const PolicyError& error) {
    const std::string_view text = error.what();
    if (text.starts_with("policy '")) throw;  // says already which one it is about
    throw PolicyError(fmt::format("policy '{}': {}", name, text));
  }
}

}  // namespace spillway
