// Compression in vDNN++ (Shriram et al., IPDPS 2019, sections IV-C and V-C).
//
//   Fig10 NET(BATCH) LAYER COLUMN   of the layer's output: size; density in percent in the authors'
//                                   test; ratio, its compressed size over that, at this density,
//                                   ratio25, ratio50 and ratio75 at such densities; compress and
//                                   decompress, in ms
//   saving NET(BATCH) %             of the feature maps that all(m) offloads, at the test's
//   densities saving NET(BATCH) at DENSITY %  if every one has that density, in [0, 1] density
//   NET(BATCH) at PERCENT   that would explain a saving

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_COMPRESSION_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_COMPRESSION_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/reproduce/item.h"

namespace spillway {

// The item without its name; nullopt if it is none of the above.
std::optional<ComputableItem> ParseVdnnppCompressionItem(std::string_view item);

// The items of Fig. 10, and the savings.
std::vector<std::string> VdnnppCompressionItems();

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_VDNNPP_COMPRESSION_H_
