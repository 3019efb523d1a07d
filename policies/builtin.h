// The factories of the built-in policies; each is defined in the file named after its policy.

#ifndef SPILLWAY_POLICIES_BUILTIN_H_
#define SPILLWAY_POLICIES_BUILTIN_H_

#include <memory>
#include <string>
#include <string_view>

#include "sim/core/policy.h"
#include "traces/base/params.h"

namespace spillway {

std::unique_ptr<Policy> MakeNetworkWidePolicy(Params& params);
std::unique_ptr<Policy> MakeLivenessPolicy(Params& params);
std::unique_ptr<Policy> MakeAsRecordedPolicy(Params& params);
std::unique_ptr<Policy> MakeSuperNeuronsPolicy(Params& params);
std::unique_ptr<Policy> MakeVdnnAllPolicy(Params& params);
std::unique_ptr<Policy> MakeVdnnConvPolicy(Params& params);
std::unique_ptr<Policy> MakeVdnnAlternateConvPolicy(Params& params);
std::unique_ptr<Policy> MakeVdnnDynPolicy(Params& params);
std::unique_ptr<Policy> MakeVdnnppPolicy(Params& params);
std::unique_ptr<Policy> MakeCaffePolicy(Params& params);
std::unique_ptr<Policy> MakeTorchPolicy(Params& params);
std::unique_ptr<Policy> MakeMxnetPolicy(Params& params);
std::unique_ptr<Policy> MakeTensorFlowPolicy(Params& params);
std::unique_ptr<Policy> MakeDtrPolicy(Params& params);
std::unique_ptr<Policy> MakeCapuchinPolicy(Params& params);
std::unique_ptr<Policy> MakeCheckmatePolicy(Params& params);
std::unique_ptr<Policy> MakeUcudnnPolicy(Params& params);
std::unique_ptr<Policy> MakeMmcnnPolicy(Params& params);
std::unique_ptr<Policy> MakeInferenceNormalPolicy(Params& params);
std::unique_ptr<Policy> MakeInferenceVdnnPolicy(Params& params);
std::unique_ptr<Policy> MakeJointPolicy(Params& params);
std::unique_ptr<Policy> MakePlanPolicy(Params& params);
std::unique_ptr<Policy> MakeSavedTensorsPolicy(Params& params);

// Whether it is `joint`, which takes longer than all others together, or `plan` or `saved-tensors`,
// which need a file: they are left out where all policies are tried.
bool DecidesByPlan(std::string_view policy);

// Whether it is mmCNN's or one that mmCNN compares with. They run a training iteration, too, but
// there is no reason to: where all policies are tried, they are tried on inference.
bool IsForInference(std::string_view policy);

// Whether it runs recorded traces only.
bool IsForRecordings(std::string_view policy);

// The vDNN of the same mode; none for `offload=dyn`, which adapts to the memory that it gets.
std::string MemoryOfVdnnpp(Params& params);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_BUILTIN_H_
