// Narrow networks of every topology, and a slow device on which they behave like large ones.

#ifndef SPILLWAY_TESTS_TESTING_NETWORKS_H_
#define SPILLWAY_TESTS_TESTING_NETWORKS_H_

#include <string>
#include <vector>

#include "sim/core/device.h"
#include "traces/lowering/graph.h"

namespace spillway::testing {

// Four 3x3 convolutions with two pools, a linear layer, softmax.
Network Chain();

// Two inception-like modules: a fork, branches of different depth, a concatenation.
Network ForkJoin();

// Two residual blocks of convolutions with batch normalisation: one whose shortcut is the identity,
// one that halves the image and projects its shortcut.
Network Residual();

// A network in the manner of AlexNet and Inception: LRN, two branches that are concatenated, the
// sum of an activation and its LRN, dropout between linear layers.
Network Normalized();

// A module in the manner of Inception v4: rows and columns as filters, padded average pooling, and
// a branch that forks again, all of it concatenated.
Network Rectangular();

// Convolutions of 64 channels: three rows of one, beside the bands that they come from, are more
// than anything else.
Network Deep();
// The same on images of so many rows and columns.
Network DeepOn(int64_t side);

// Two dense blocks of two layers: what is concatenated is forked, normalised and concatenated
// again.
Network Dense();

// The policy `superneurons` with every combination of its parameters.
std::vector<std::string> SuperNeuronsCombinations();

// 100 GFLOP/s, 10 GB/s DRAM, 1 GB/s links with 2 us latency; a slow algorithm without and a fast
// one with workspace for each convolution slot.
Device NarrowDevice();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_NETWORKS_H_
