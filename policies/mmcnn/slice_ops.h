// The facts on which the division of an inference rests: which ops can be divided and how finely,
// and how much memory an op needs on the device. Blocks are rounded up to the alignment; workspaces
// are not counted.

#ifndef SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_
#define SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::policies {

// The names of the attributes that hold the channels of an op which can run in slices of its output
// channels.
struct ChannelAxis {
  const char* outputs;
  const char* inputs;
  int64_t groups = 1;
};
// Returns nullopt for an op that cannot run in slices; an op of more than one sample cannot.
std::optional<ChannelAxis> ChannelAxisOf(const Op& op);

// Output channels [from, to).
struct Slice {
  int64_t from = 0, to = 0;
  int64_t size() const { return to - from; }
};

// Returns at least `count` slices of about the same size, or one per channel if there are fewer
// channels. A slice has whole groups, or channels of one group. REQUIRES: the op has an axis.
std::vector<Slice> SlicesOf(const Op& op, int64_t count);

bool IsParameter(const Tensor& tensor);

// The memory that an op needs on the device.
struct OpNeed {
  Bytes maps;        // the bytes of all operands that are not divided with the op
  Bytes parameters;  // the bytes of the parameters that are divided with the op
};

class OpNeeds {
 public:
  // REQUIRES: the trace outlives this object.
  OpNeeds(const Trace& trace, Bytes alignment)
      : trace_(trace), liveness_(trace), alignment_(alignment) {}

  OpNeed Of(OpId op) const;
  // Returns the need of the op with its parameters in the finest slices.
  Bytes LeastOf(OpId op) const;
  // Returns the smallest number of slices, at least `least`, such that a slice and the maps fit
  // together, or the number of output channels if none fits. REQUIRES: the op has an axis.
  int64_t SlicesWithin(OpId op, int64_t least, Bytes limit) const;

  Bytes Rounded(Bytes size) const { return RoundUp(size, alignment_); }

 private:
  // Returns the bytes of the parameters of the largest slice.
  Bytes LargestSlice(OpId op, const std::vector<Slice>& slices) const;

  const Trace& trace_;
  const Liveness liveness_;
  const Bytes alignment_;
};

// Changes an attribute of the op. Does nothing if the op does not have it.
void SetAttribute(Op& op, std::string_view name, int64_t value);

// Returns the only slot of a forward op, with flops, traffic and signature from its attributes and
// operands. The signature ends with "unaligned" if an operand does not begin at a multiple of 16
// bytes.
Slot ForwardSlot(const Trace& trace, const Op& op);

}  // namespace spillway::policies

#endif  // SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_
