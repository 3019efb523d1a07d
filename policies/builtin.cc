#include "policies/registry.h"

namespace spillway::policies {

// Each function is defined in the file of its policies, and adds them to the registry.
using Register = void(PolicyRegistry& registry);
Register RegisterNetworkWide;
Register RegisterLiveness;
Register RegisterAsRecorded;
Register RegisterVdnn;
Register RegisterVdnnpp;
Register RegisterCaffe;
Register RegisterTorch;
Register RegisterMxnet;
Register RegisterTensorFlow;
Register RegisterSuperNeurons;
Register RegisterDtr;
Register RegisterCapuchin;
Register RegisterCheckmate;
Register RegisterUcudnn;
Register RegisterMmcnn;
Register RegisterJoint;
Register RegisterSavedTensors;

void RegisterBuiltinPolicies(PolicyRegistry& registry) {
  RegisterNetworkWide(registry);
  RegisterLiveness(registry);
  RegisterAsRecorded(registry);
  RegisterVdnn(registry);
  RegisterVdnnpp(registry);
  RegisterCaffe(registry);
  RegisterTorch(registry);
  RegisterMxnet(registry);
  RegisterTensorFlow(registry);
  RegisterSuperNeurons(registry);
  RegisterDtr(registry);
  RegisterCapuchin(registry);
  RegisterCheckmate(registry);
  RegisterUcudnn(registry);
  RegisterMmcnn(registry);
  RegisterJoint(registry);
  RegisterSavedTensors(registry);
}

}  // namespace spillway::policies
