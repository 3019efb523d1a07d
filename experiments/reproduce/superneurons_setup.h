// What the items of SuperNeurons (Wang et al., PPoPP 2018) have in common: the paper's names of
// networks, its GPU and preset, and how text becomes an item. Private to
// superneurons*.cc.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SETUP_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SETUP_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "experiments/reproduce/item.h"
#include "sim/core/device.h"
#include "sim/core/report.h"
#include "sim/cost/roofline.h"
#include "traces/trace.h"
#include "traces/zoo/zoo.h"

namespace spillway::superneurons {

inline constexpr const char* kPreset = "superneurons";
// The paper's pool (section 3.2.1).
inline constexpr const char* kPool = "first-fit:granularity=1KiB";

// nullopt: not computed, or it does not fit.
using Computed = std::optional<double>;

// Take the prefix or suffix off the text if it has it; false if not.
bool TakePrefix(std::string_view& text, std::string_view prefix);
bool TakeSuffix(std::string_view& text, std::string_view suffix);
// What follows the last blank, taken off with it; all of a text without blanks.
std::string_view TakeLastWord(std::string_view& text);
std::optional<int64_t> ParseNumber(std::string_view text);

// "AlexNet" or "resnet50@224(64)", as the paper or the zoo writes it: with `batch` where it has
// none, or with the paper's usual one where that is 0. nullopt if it does not look like a network.
std::optional<Workload> ParseNetwork(std::string_view text, int64_t batch = 0);

// `compute` is called only where the zoo has the network.
ComputableItem MakeItem(const Workload& workload, std::string unit,
                        std::function<Computed()> compute);

// A workload on the model of a K40c, the GPU of Tables 4 and 5.
struct Scene {
  explicit Scene(const Workload& workload);
  Report Run(const std::string& policy, Bytes memory = Bytes::Unlimited(),
             const std::string& allocator = "best-fit") const;

  Trace trace;
  Device device;
  RooflineCostModel cost;
};

// Tensors that the paper counts, each storage once: how many, and their bytes.
struct Total {
  int tensors = 0;
  Bytes bytes;
};
Total CountedStorages(const Trace& trace);

// What all layers together hold: the counted tensors but the first copy of each fork, and
// parameters with their gradients and momentum.
Bytes NetworkMemory(const Trace& trace);

}  // namespace spillway::superneurons

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SETUP_H_
