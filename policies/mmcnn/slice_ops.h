// What dividing an inference rests on: which ops can be divided and how finely, and what one needs
// on the device. Blocks are rounded up to the alignment; workspaces are not counted.

#ifndef SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_
#define SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// The attributes with the channels of an op that runs in slices of its output channels.
struct ChannelAxis {
  const char* outputs;
  const char* inputs;
  int64_t groups = 1;
};
// nullopt for an op without such slices, also for one of more than one sample.
std::optional<ChannelAxis> ChannelAxisOf(const Op& op);

// Output channels [from, to).
struct Slice {
  int64_t from = 0, to = 0;
  int64_t size() const { return to - from; }
};

// At least `count` slices of about the same size, if there are as many channels; each of whole
// groups, or of one. REQUIRES: the op has an axis.
std::vector<Slice> SlicesOf(const Op& op, int64_t count);

bool IsParameter(const Tensor& tensor);

// What an op needs on the device.
struct OpNeed {
  Bytes maps;        // all but what is divided with it
  Bytes parameters;  // that are divided
};

class OpNeeds {
 public:
  // The trace outlives it.
  OpNeeds(const Trace& trace, Bytes alignment)
      : trace_(trace), liveness_(trace), alignment_(alignment) {}

  OpNeed Of(OpId op) const;
  // With parameters in the finest slices.
  Bytes LeastOf(OpId op) const;
  // The fewest slices, at least `least`, that fit beside the maps; the most that there can be where
  // none do. REQUIRES: the op has an axis.
  int64_t SlicesWithin(OpId op, int64_t least, Bytes limit) const;

  Bytes Rounded(Bytes size) const { return RoundUp(size, alignment_); }

 private:
  // The most that the parameters of one slice take.
  Bytes LargestSlice(OpId op, const std::vector<Slice>& slices) const;

  const Trace& trace_;
  const Liveness liveness_;
  const Bytes alignment_;
};

// Changes an attribute that the op has.
void SetAttribute(Op& op, std::string_view name, int64_t value);

// The one slot of a forward op, from its attributes and operands: flops, traffic, and a signature
// that ends with "unaligned" if an operand begins between multiples of 16 bytes.
Slot ForwardSlot(const Trace& trace, const Op& op);

}  // namespace spillway

#endif  // SPILLWAY_POLICIES_MMCNN_SLICE_OPS_H_
