// The numbers of vDNN++ (Shriram et al., IPDPS 2019), computed again.
//
// Items, for any network and batch; the paper's names AlexNet, VGG-16, VGG-116 and VGG-191 mean its
// variants. MODE is all(m), all(p), conv(m), conv(p), aconv(m), aconv(p) or dyn:
//
//   pinned NET(BATCH) MB            host memory for everything that can leave (section III-C)
//   NET(BATCH) GB                   what the base memory manager needs (section V-A)
//   Tab2 NET(BATCH) MODE COLUMN     expected, actual: on the GTX 970
//   Tab4 NET(BATCH) MODE COLUMN     vDNN, vDNN++: time of an iteration on the GTX 1080 Ti, in ms
//   Tab5 NET(BATCH) MODE COLUMN     aggregate, or prefetch-first or derivative-first, then best-fit
//                                   or high-end, or auto, the least of all allocators and orders:
//                                   on the GTX 1080 Ti
//   Fig5 NET(BATCH) MODE COLUMN     forward, backward: most bytes held in that phase under vDNN
//   Fig6 NET(BATCH) LAYER COLUMN    forward, transfer: time of a layer, and of its input's copy, in
//                                   ms
//   Fig9 NET(BATCH) MODE COLUMN     vDNN, vDNN++: time over that of the base with the fastest
//                                   algorithms, on the GTX 1080 Ti, vDNN++ in vDNN's memory
//   Fig10, saving, density          vdnnpp_compression.h
//
// Tables II and V count the requests of a run that releases as vDNN does (`release=eager`), with
// what no trace holds added as the preset's accounting says (README.md in experiments/reproduce).

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/reproduce/item.h"

namespace spillway {

// nullopt if it is none of the above.
std::optional<ComputableItem> ParseVdnnppItem(std::string_view item);

// The items that make up a table or figure which is no list of printed numbers: Tab4, Fig5, Fig6,
// Fig9 or Fig10. Empty for other names.
std::vector<std::string> VdnnppItemsOf(std::string_view figure);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_H_
