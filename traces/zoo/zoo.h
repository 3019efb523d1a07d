// The network zoo: the architectures that the papers evaluate, by name.

#ifndef SPILLWAY_TRACES_ZOO_ZOO_H_
#define SPILLWAY_TRACES_ZOO_ZOO_H_

#include <string>
#include <string_view>
#include <vector>

#include "traces/graph.h"

namespace spillway {

struct ZooEntry {
  std::string name;
  std::string description;  // variant and source
  Network (*build)();
};

// All networks, in the order in which they should be listed.
const std::vector<ZooEntry>& Zoo();

// Throws `UsageError` with a suggestion and the valid names.
Network BuildNetwork(std::string_view name);

// A network and a batch size: "vgg19:256".
struct Workload {
  std::string network;
  int64_t batch = 1;

  std::string Name() const;
};

// Throws `UsageError`: no colon, an unknown network, or a batch that is not in [1, 65536].
Workload ParseWorkload(std::string_view text);

// Builders, one file per family.
Network BuildAlexNet();    // "one weird trick" variant, 224x224, no LRN (vDNN's reference)
Network BuildOverFeat();   // fast model, 231x231
Network BuildGoogLeNet();  // without auxiliary classifiers and LRN
// VGG with `convs[i]` 3x3 convolutions in group i, of 64, 128, 256, 512, 512 channels.
Network BuildVgg(std::string name, const std::vector<int>& convs);

}  // namespace spillway

#endif  // SPILLWAY_TRACES_ZOO_ZOO_H_
