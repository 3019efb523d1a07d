// A workload as a paper's preset lowers it, on the model of the paper's GPU.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_SCENE_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_SCENE_H_

#include <string>

#include "experiments/run/simulate.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "sim/cost/roofline.h"
#include "traces/trace.h"
#include "traces/zoo/zoo.h"

namespace spillway {

struct Scene {
  Scene(const Workload& workload, const std::string& preset, const std::string& device_name,
        bool training = true);

  // Refers to this scene.
  Setup In(Bytes memory, const std::string& allocator = "best-fit") const;
  Report Run(const std::string& policy, Bytes memory = Bytes::Unlimited(),
             const std::string& allocator = "best-fit") const;

  Trace trace;
  Device device;
  RooflineCostModel cost;
};

// A simulated iteration under a policy of this program.
Report Play(const Setup& setup, const std::string& policy);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_SCENE_H_
