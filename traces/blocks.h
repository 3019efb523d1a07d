// The blocks of a network, such as the layers of a transformer, found by the names of its layers.

#ifndef SPILLWAY_TRACES_BLOCKS_H_
#define SPILLWAY_TRACES_BLOCKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "traces/trace.h"

namespace spillway::traces {

// Returns the name of each layer's block, by layer; empty for a layer that belongs to no block.
//
// A recording of PyTorch names the block itself: the block of "transformer.h.0/addmm.16" is
// "transformer.h.0". In other traces, a block is a prefix of names that recurs with another number:
// "h.0" in "h.0.attn" if there is a "h.1.attn", too. Where several prefixes recur, the outermost
// whose last part is a number ("layer1.0") goes before the outermost that ends with a number
// ("res2_1").
std::vector<std::string> BlocksOf(const Trace& trace);

// Returns the names of all blocks in the order in which forward enters them.
std::vector<std::string> BlocksInOrder(const Trace& trace);

// Returns the name of a block without the number at its end: "transformer.h." for
// "transformer.h.0".
std::string_view StemOf(std::string_view block);

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_BLOCKS_H_
