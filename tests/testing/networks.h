// Narrow networks of every topology, and a slow device on which they behave like large networks.

#ifndef SPILLWAY_TESTS_TESTING_NETWORKS_H_
#define SPILLWAY_TESTS_TESTING_NETWORKS_H_

#include <string>
#include <vector>

#include "sim/core/device.h"
#include "traces/lowering/graph.h"

namespace spillway::testing {

// Four 3x3 convolutions with two pools, a linear layer and softmax.
Network Chain();

// Two inception-like modules: a fork, branches of different depth and a concatenation.
Network ForkJoin();

// Two residual blocks of convolutions with batch normalisation: one whose shortcut is the identity,
// one that halves the image and projects its shortcut.
Network Residual();

// A network in the manner of AlexNet and Inception. It has LRN, two branches that are concatenated,
// the sum of an activation and its LRN, and dropout between linear layers.
Network Normalized();

// A module in the manner of Inception v4. It has filters of single rows and columns, padded average
// pooling, and a branch that forks again; all branches are concatenated.
Network Rectangular();

// Two convolutions of 64 channels on 24 x 24 images. The three input rows gathered for one output
// row, together with the bands that they come from, are larger than any other working set.
Network Deep();
// Returns the network of `Deep()` on images of `side` rows and columns.
Network DeepOn(int64_t side);

// Two dense blocks of two layers: each concatenation is forked, normalised and concatenated again.
Network Dense();

// Small transformers on sequences of odd length. `Gpt` has attention as separate ops and a weight
// that two layers share, `Llama` fused attention with fewer heads of keys than of queries, `Vit` an
// image and a class token.
Network Gpt();
Network Llama();
Network Vit();

// Returns the policy `superneurons` with every combination of its parameters.
std::vector<std::string> SuperNeuronsCombinations();

// Returns a device with 100 GFLOP/s, 10 GB/s DRAM and 1 GB/s links with 2 us latency. Each
// convolution slot has a slow algorithm without workspace and a fast one with workspace.
Device NarrowDevice();

}  // namespace spillway::testing

#endif  // SPILLWAY_TESTS_TESTING_NETWORKS_H_
