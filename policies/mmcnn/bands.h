// Feature maps in bands of rows, for what mmCNN (Li et al. 2020) cannot divide: ops whose whole
// maps do not fit.
//
// A band is a tensor of its own, with all channels of some rows, so that the others can be outside.
// What an op needs besides its own rows (the halo of a convolution or a pool, and its padding) is
// gathered with them into a map of their own by an op of type `rows`. Layers that work on single
// elements follow band by band on the layer before them. Where maps fit again, the bands are
// gathered into the whole.
//
// Channels are divided where even that leaves no room: an image comes from outside channel by
// channel, of which rows are gathered; a pool over a whole map runs in slices of channels, each
// gathered from all bands; a convolution of which one output channel's operands do not fit adds up
// slices of its input channels, each gathered for itself.

#ifndef SPILLWAY_POLICIES_MMCNN_BANDS_H_
#define SPILLWAY_POLICIES_MMCNN_BANDS_H_

#include <cstdint>
#include <optional>

#include "traces/trace.h"

namespace spillway {

// What an op needs at least however finely it is divided by rows: those of a map that its filter
// meets at once. nullopt for an op that cannot be.
std::optional<Bytes> LeastInBands(const Trace& trace, const Op& op);

// Of a convolution that adds up slices of its input channels all terms, or those of one output
// channel, which need what the others need: that is no valid trace, but a hundred times smaller.
enum class Terms : uint8_t { kAll, kOfOneOutput };

// The trace with what does not fit in `limit`, weights in the finest slices, in bands: as many as
// leave room for what is gathered, of one row at least, so that little memory may not be enough.
// Tensors keep their numbers. A trace of training, or of more than one sample, stays as it is.
Trace DivideIntoBands(const Trace& trace, Bytes limit, Bytes alignment, Terms terms = Terms::kAll);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_MMCNN_BANDS_H_
