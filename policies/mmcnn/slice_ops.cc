#include "policies/mmcnn/slice_ops.h"

#include <algorithm>

#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// If an operand does not begin at a multiple of this many bytes, cuDNN runs kernels that are
// several times slower.
constexpr int64_t kAligned = 16;
// Slices begin at multiples of this many channels if there are enough channels. Then views are
// aligned.
constexpr int64_t kStep = kAligned / static_cast<int64_t>(sizeof(float));

// Adds `count` slices of `channels` channels that begin at `begin`. Slices begin at multiples of
// `kStep` if that leaves none empty.
void AddEven(int64_t begin, int64_t channels, int64_t count, std::vector<Slice>& slices) {
  const int64_t step = count * kStep <= channels ? kStep : 1;
  const int64_t steps = channels / step;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = steps * i / count * step;
    const int64_t to = i + 1 == count ? channels : steps * (i + 1) / count * step;
    slices.push_back({begin + from, begin + to});
  }
}

int64_t OutputsOf(const Op& op) { return op.IntAttribute(ChannelAxisOf(op).value().outputs, 1); }

}  // namespace

std::optional<ChannelAxis> ChannelAxisOf(const Op& op) {
  if (op.batch != 1 || op.phase != Phase::kForward) return std::nullopt;
  if (op.type == OpType::kLinear && op.FindAttribute("rows")) return std::nullopt;
  if (op.type == OpType::kLinear) return ChannelAxis{"out_features", "in_features"};
  if (op.type != OpType::kConv2d) return std::nullopt;
  const ChannelAxis axis{"out_channels", "in_channels", op.IntAttribute("groups", 1)};
  if (op.IntAttribute(axis.outputs, 1) % axis.groups != 0) return std::nullopt;
  return op.IntAttribute(axis.inputs, 1) % axis.groups == 0 ? std::optional(axis) : std::nullopt;
}

std::vector<Slice> SlicesOf(const Op& op, int64_t count) {
  const int64_t channels = OutputsOf(op);
  const int64_t groups = ChannelAxisOf(op).value().groups;
  const int64_t in_group = channels / groups;
  std::vector<Slice> slices;
  count = std::min(count, channels);
  if (count <= groups) {
    for (int64_t i = 0; i < count; ++i) {
      slices.push_back({groups * i / count * in_group, groups * (i + 1) / count * in_group});
    }
    return slices;
  }
  const int64_t each = std::min((count + groups - 1) / groups, in_group);
  for (int64_t g = 0; g < groups; ++g) AddEven(g * in_group, in_group, each, slices);
  return slices;
}

bool IsParameter(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState;
}

OpNeed OpNeeds::Of(OpId id) const {
  OpNeed need;
  const bool divisible = ChannelAxisOf(trace_.op(id)).has_value();
  for (const TensorId storage : liveness_.Storages(id)) {
    const Tensor& tensor = trace_.tensor(storage);
    (divisible && IsParameter(tensor) ? need.parameters : need.maps) += Rounded(tensor.size);
  }
  return need;
}

Bytes OpNeeds::LeastOf(OpId id) const {
  const Bytes maps = Of(id).maps;
  const Op& op = trace_.op(id);
  return ChannelAxisOf(op) ? maps + LargestSlice(id, SlicesOf(op, OutputsOf(op))) : maps;
}

int64_t OpNeeds::SlicesWithin(OpId id, int64_t least, Bytes limit) const {
  const Op& op = trace_.op(id);
  const int64_t channels = OutputsOf(op);
  const auto [maps, parameters] = Of(id);
  if (maps >= limit) return channels;
  const int64_t free = (limit - maps).count();
  int64_t count = std::max({least, (parameters.count() + free - 1) / free, int64_t{1}});
  while (count < channels && maps + LargestSlice(id, SlicesOf(op, count)) > limit) ++count;
  return std::min(count, channels);
}

Bytes OpNeeds::LargestSlice(OpId id, const std::vector<Slice>& slices) const {
  Bytes largest;
  for (const Slice& slice : slices) {
    Bytes size;
    for (const TensorId storage : liveness_.Storages(id)) {
      const Tensor& tensor = trace_.tensor(storage);
      if (!IsParameter(tensor)) continue;
      size += Rounded(Bytes(tensor.size.count() / slices.back().to * slice.size()));
    }
    largest = std::max(largest, size);
  }
  return largest;
}

void SetAttribute(Op& op, std::string_view name, int64_t value) {
  for (Attribute& attribute : op.attributes) {
    if (attribute.name == name) attribute.value = static_cast<double>(value);
  }
}

Slot ForwardSlot(const Trace& trace, const Op& op) {
  const OpSlot& row = StepOf(op).slots[0];
  Slot slot{std::string(row.name), SignatureOf(op, row), op.batch * row.flops(op), Bytes(0)};
  bool aligned = true;
  for (const auto* operands : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *operands) {
      slot.traffic += trace.tensor(id).size;
      aligned = aligned && trace.OffsetInStorage(id).count() % kAligned == 0;
    }
  }
  if (!aligned) slot.signature += " unaligned";
  return slot;
}

}  // namespace spillway::policies
