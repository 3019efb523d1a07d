// A workload on a machine, loaded and ready to run under one policy after the other.

#ifndef SPILLWAY_EXPERIMENTS_RUN_SCENARIO_H_
#define SPILLWAY_EXPERIMENTS_RUN_SCENARIO_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "experiments/run/assembler.h"
#include "experiments/run/resolve.h"
#include "experiments/run/setup.h"

namespace spillway {

// A machine by names and texts, as options and result columns have them.
struct MachineText {
  std::string device = "h200";
  std::string memory;  // as for `ParseMemory`; the device's if empty
  std::string allocator = "best-fit";
  std::string cost = "auto";  // as for `LoadCost`
  std::string compress;       // as for `ParseCompression`; nothing is compressed if empty
  bool deterministic = false;
  bool charge_input = false;
  bool check = false;
  std::string backend = kSimulator;
  int iterations = 0;                   // of a backend that executes
  std::vector<std::string> pools = {};  // as for `AddPool`, besides the device file's
};

// A setup without trace and cost model, with all of the device's memory. Throws `UsageError` or
// `InputError`.
Setup LoadMachine(const MachineText& machine);

// Throws `PolicyError` if the independent checker finds violations in the report; `whose` run it
// was opens the message: "policy 'vdnn-all'".
void Verify(const std::string& whose, const Outcome& outcome);

class Scenario {
 public:
  // Throws `UsageError` or `InputError`. `cost` takes the place of what the machine names, if
  // given.
  Scenario(Trace trace, const MachineText& machine,
           std::unique_ptr<const CostModel> cost = nullptr);
  Scenario(std::shared_ptr<const Trace> trace, const MachineText& machine,
           std::unique_ptr<const CostModel> cost = nullptr);

  // The same in other memory, as for `MachineText`, with all that does not depend on it shared.
  Scenario WithMemory(const std::string& memory) const;

  const Setup& setup() const { return setup_; }
  const Report& ideal() const { return *ideal_; }
  // `JointBound` in the memory of the setup. Computed when it is first asked for: it takes about a
  // tenth of a second, more than a run.
  Duration joint_bound() const;

  // `spillway::Play` of one policy, or with the allocator `auto` of the one that it chooses;
  // verified where asked for. Throws `PolicyError` if the verification finds a violation. Safe to
  // call from several threads on the simulator.
  Outcome Play(const std::string& specification, const BackendFactories& backends = {}) const;
  Outcome Play(const std::string& name, const std::vector<PolicyMaker>& makers,
               const BackendFactories& backends = {}) const;

 private:
  struct LazyBound {
    std::once_flag once;
    Duration bound;
  };

  Setup setup_;
  std::shared_ptr<const Report> ideal_;
  std::shared_ptr<LazyBound> bound_ = std::make_shared<LazyBound>();
  bool check_;
};

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_RUN_SCENARIO_H_
