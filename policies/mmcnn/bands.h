// The division of feature maps into bands of rows, for ops that mmCNN (Li et al. 2020) cannot
// divide because their whole maps do not fit.
//
// A band is a tensor with all channels of some rows, so that other bands can be outside. A band of
// a convolution or a pool also reads rows beyond its own (the halo) and padding. An op of type
// `rows` gathers all rows that the band reads into one map. Layers that work element by element
// follow the layer before them band by band. When maps fit again, the bands are gathered into the
// whole map.
//
// If bands leave no room, channels are divided, too. An image comes from outside channel by
// channel, and rows are gathered from each channel. A pool over a whole map runs in slices of
// channels, each gathered from all bands. A convolution whose operands for one output channel do
// not fit adds up slices of its input channels, and each slice is gathered separately.

#ifndef SPILLWAY_POLICIES_MMCNN_BANDS_H_
#define SPILLWAY_POLICIES_MMCNN_BANDS_H_

#include <cstdint>
#include <optional>

#include "traces/trace.h"

namespace spillway::policies {

// Returns the least memory that an op needs however finely it is divided by rows: the rows of an
// input map that its filter covers at once. Returns nullopt for an op that cannot be divided by
// rows.
std::optional<Bytes> LeastInBands(const Trace& trace, const Op& op);

// The ops to write for a convolution that adds up slices of its input channels: the ops of all
// output channels, or of one output channel. All output channels need the same memory. A trace with
// one is not valid, but a hundred times smaller.
enum class Terms : uint8_t { kAll, kOfOneOutput };

// Returns the trace with each op divided into bands that does not fit in `limit` with its weights
// in the finest slices. There are as many bands as leave room for the rows that are gathered, but a
// band has at least one row, so the result may not fit either. Tensors keep their numbers. A trace
// of training, or of more than one sample, is returned as it is.
Trace DivideIntoBands(const Trace& trace, Bytes limit, Bytes alignment, Terms terms = Terms::kAll);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_MMCNN_BANDS_H_
