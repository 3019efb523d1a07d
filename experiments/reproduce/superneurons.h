// The numbers of SuperNeurons (Wang et al., PPoPP 2018), computed again.
//
// Items, besides those of the list of printed values. NET is a network as the paper or the zoo
// writes it, with the paper's batch or one of its own: AlexNet, ResNet101, ResNet101(64), vgg19(8).
// MODE is speed-centric, mem-centric or cost-centric:
//
//   Tab1 NET extra (MODE)           steps that are run again
//   Tab1 NET MODE peak              most bytes that a step needs, with what rebuilding begins with
//   Fig10 TECHNIQUE step N MB       held at step N of AlexNet(200); TECHNIQUE is liveness, offload
//   Fig10 TECHNIQUE step N tensors  (and liveness) or recompute (and both); steps are numbered from
//                                   1, forward and then backward
//   layers in NET                   layers, the released code's second data layer included
//   Floor NET ALLOCATOR             least memory that a run with everything on fits in, as a
//                                   multiple of max(l_i), parameters, their gradients and optimizer
//                                   state apart; ALLOCATOR is first-fit (of 1 KiB) or stitched
//
// Counted are outputs of layers and gradients of activations, as in the paper: no image, labels,
// statistics, parameters or workspaces.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/reproduce/item.h"
#include "sim/core/report.h"
#include "traces/trace.h"

namespace spillway {

// nullopt if it is none of the above and not in the paper's list. Computing an item gives nullopt
// where the zoo lacks the network.
std::optional<ComputableItem> ParseSuperNeuronsItem(std::string_view item);

// The items of a figure or table: Tab2, Tab3, Fig2, Fig8, Fig10 to Fig13 or Floor. Empty for other
// names.
std::vector<std::string> SuperNeuronsItemsOf(std::string_view figure);

// What is held at one step of a run.
struct StepMemory {
  Bytes held;       // counted tensors, at the step's worst moment
  int tensors = 0;  // how many at that moment
  Bytes needed;     // of these, what the step names and what rebuilding that begins with
};

// One entry for each forward and backward op, in the order of the trace. REQUIRES: the report fits.
std::vector<StepMemory> StepMemories(const Trace& trace, const Report& report);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_H_
