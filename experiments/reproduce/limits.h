// The limits that SuperNeurons (Wang et al., PPoPP 2018) prints for it and for the frameworks that
// it compares with, found again: Table 4, the deepest ResNet, and Table 5, the largest batch, on a
// K40 with 12 GiB.
//
//   Tab4 FRAMEWORK            depth of resnet(6,32,n3,6) at batch 16: 3 (n1 + n2 + n3 + n4) + 2
//   Tab5 NETWORK FRAMEWORK    batch
//   Tab4 order, Tab5 NETWORK order
//                             pairs of frameworks that stand in the paper's order, of those for
//                             which it prints different numbers
//
// A framework's column depends on versions and allocators that no rule here knows, so it is shown
// and not judged. The order is.

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_LIMITS_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_LIMITS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/reproduce/item.h"

namespace spillway {

// All items, with what the paper prints, if `request` is "superneurons-Tab4", "superneurons-Tab5"
// or "superneurons-limits" (both); the item itself if it names one; else nothing.
std::vector<PaperValue> SelectLimitValues(std::string_view request);

// nullopt if it is none of the above. A column whose policy this program does not have computes to
// nullopt.
std::optional<ComputableItem> ParseLimitItem(std::string_view item);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_LIMITS_H_
