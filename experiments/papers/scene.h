// A workload as a paper's preset lowers it, on the paper's GPU or on another one.

#ifndef SPILLWAY_EXPERIMENTS_PAPERS_SCENE_H_
#define SPILLWAY_EXPERIMENTS_PAPERS_SCENE_H_

#include <memory>
#include <string>

#include "experiments/papers/paper.h"
#include "experiments/run/run.h"
#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "traces/trace.h"
#include "traces/zoo/zoo.h"

namespace spillway {

struct Scene {
  Scene(const Workload& workload, const std::string& preset, const PaperMachine& machine,
        bool training = true);

  // Returns a run that refers to this scene.
  Prepared In(Bytes memory, const std::string& allocator = "best-fit") const;
  Report Run(const std::string& policy, Bytes memory = Bytes::Unlimited(),
             const std::string& allocator = "best-fit") const;

  Trace trace;
  Device device;
  std::unique_ptr<const CostModel> model;
  const CostModel& cost = *model;
};

// Simulates an iteration under a built-in policy.
Report Play(Prepared run, const std::string& policy);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_PAPERS_SCENE_H_
