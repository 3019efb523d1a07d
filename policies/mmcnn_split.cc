#include "policies/mmcnn_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "policies/mmcnn_schedule.h"
#include "traces/liveness.h"
#include "traces/ops/table.h"

namespace spillway {
namespace {

constexpr int64_t kElement = 4;  // fp32
// Channels by which slices begin, where there are enough: views are aligned to 16 bytes then.
constexpr int64_t kStep = 4;

// What a type of op is divided along: its output channels.
struct Axis {
  const char* outputs;
  const char* inputs;
  bool groups = false;
};

std::optional<Axis> AxisOf(const Op& op) {
  if (op.batch != 1 || op.phase != Phase::kForward) return std::nullopt;
  if (op.type == OpType::kConv2d) return Axis{"out_channels", "in_channels", true};
  if (op.type == OpType::kLinear) return Axis{"out_features", "in_features"};
  return std::nullopt;
}

int64_t GroupsOf(const Op& op, const Axis& axis) {
  return axis.groups ? op.IntAttribute("groups", 1) : 1;
}

// Output channels [from, to).
struct Slice {
  int64_t from = 0, to = 0;
  int64_t size() const { return to - from; }
};

// `count` slices of [0, channels), of about the same size; by steps if none is empty then.
void AddEven(int64_t begin, int64_t channels, int64_t count, std::vector<Slice>& slices) {
  const int64_t step = count * kStep <= channels ? kStep : 1;
  const int64_t steps = channels / step;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = steps * i / count * step;
    const int64_t to = i + 1 == count ? channels : steps * (i + 1) / count * step;
    slices.push_back({begin + from, begin + to});
  }
}

// At least `count` slices, if there are as many channels; each of whole groups, or of one.
std::vector<Slice> SlicesOf(const Op& op, const Axis& axis, int64_t count) {
  const int64_t channels = op.IntAttribute(axis.outputs, 1);
  const int64_t groups = GroupsOf(op, axis);
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

// The bytes of `tensor` that belong to the slice, an equal share of each output channel.
Bytes SliceOf(const Tensor& tensor, const Slice& slice, int64_t channels) {
  return Bytes(tensor.size.count() / channels * slice.size());
}

// What an op needs on the device.
struct Need {
  Bytes maps;        // all but what is divided with it
  Bytes parameters;  // that are divided
};

class Sizes {
 public:
  Sizes(const Trace& trace, Bytes alignment)
      : trace_(trace), liveness_(trace), alignment_(alignment) {}

  Need NeedOf(OpId id) const {
    Need need;
    const bool divisible = AxisOf(trace_.op(id)).has_value();
    for (const TensorId storage : liveness_.Storages(id)) {
      const Tensor& tensor = trace_.tensor(storage);
      (divisible && IsParameter(tensor) ? need.parameters : need.maps) += Rounded(tensor.size);
    }
    return need;
  }

  // The most that the parameters of one slice take.
  Bytes LargestSlice(OpId id, const std::vector<Slice>& slices) const {
    const int64_t channels = slices.back().to;
    Bytes largest;
    for (const Slice& slice : slices) {
      Bytes size;
      for (const TensorId storage : liveness_.Storages(id)) {
        const Tensor& tensor = trace_.tensor(storage);
        if (IsParameter(tensor)) size += Rounded(SliceOf(tensor, slice, channels));
      }
      largest = std::max(largest, size);
    }
    return largest;
  }

  // The fewest slices, at least `least`, that fit beside the maps; the most that there can be where
  // none do.
  std::vector<Slice> Fitting(OpId id, int64_t least, Bytes limit) const {
    const Op& op = trace_.op(id);
    const Axis axis = AxisOf(op).value();
    const int64_t channels = op.IntAttribute(axis.outputs, 1);
    const auto [maps, parameters] = NeedOf(id);
    if (maps >= limit) return SlicesOf(op, axis, channels);
    const int64_t free = (limit - maps).count();
    for (int64_t count = std::max({least, (parameters.count() + free - 1) / free, int64_t{1}});;
         ++count) {
      std::vector<Slice> slices = SlicesOf(op, axis, count);
      if (count >= channels || maps + LargestSlice(id, slices) <= limit) return slices;
    }
  }

 private:
  Bytes Rounded(Bytes size) const { return RoundUp(size, alignment_); }

  const Trace& trace_;
  const Liveness liveness_;
  const Bytes alignment_;
};

// Writes the divided trace op by op. Tensors keep their numbers, new ones stand behind them.
class Divider {
 public:
  explicit Divider(const Trace& trace) : from_(trace), to_(trace) { to_.ops.clear(); }

  void Copy(const Op& op) { to_.ops.push_back(op); }

  void Divide(const Op& op, const std::vector<Slice>& slices) {
    const Axis axis = AxisOf(op).value();
    const int64_t channels = op.IntAttribute(axis.outputs, 1);
    const int64_t inputs = op.IntAttribute(axis.inputs, 1);
    const int64_t in_group = channels / GroupsOf(op, axis);
    for (const Slice& slice : slices) {
      const int64_t first_group = slice.from / in_group;
      const int64_t groups = std::max<int64_t>(slice.size() / in_group, 1);
      const int64_t depth = inputs / GroupsOf(op, axis);
      Op part = op;
      part.name += Suffix(slice);
      for (TensorId& input : part.inputs) {
        const Tensor& tensor = from_.tensor(input);
        if (IsParameter(tensor)) {
          input = Piece(input, slice, channels, /*view=*/false);
        } else if (groups < GroupsOf(op, axis)) {
          input = Piece(input, {first_group * depth, (first_group + groups) * depth}, inputs, true);
        }
      }
      for (TensorId& output : part.outputs) output = Piece(output, slice, channels, true);
      Set(part, axis.outputs, slice.size());
      Set(part, axis.inputs, groups * depth);
      if (axis.groups) Set(part, "groups", groups);
      Measure(part);
      to_.ops.push_back(std::move(part));
    }
  }

  Trace Take() { return std::move(to_); }
  size_t ops() const { return to_.ops.size(); }

 private:
  static std::string Suffix(const Slice& slice) {
    return fmt::format("[{}:{}]", slice.from, slice.to);
  }

  // Some channels of a tensor: a view of it, or a part.
  TensorId Piece(TensorId of, const Slice& slice, int64_t channels, bool view) {
    Tensor piece = from_.tensor(of);
    piece.name += Suffix(slice);
    const auto [known, is_new] =
        pieces_.try_emplace(piece.name, static_cast<TensorId>(to_.tensors.size()));
    if (!is_new) return known->second;
    const Bytes channel(piece.size.count() / channels);
    // An activation's channels stand behind the samples, of which there is one.
    piece.shape[view ? 1 : 0] = slice.size();
    piece.size = channel * slice.size();
    piece.alias_of = view ? std::optional(of) : std::nullopt;
    piece.part_of = view ? std::nullopt : std::optional(of);
    piece.offset = channel * slice.from;
    to_.tensors.push_back(std::move(piece));
    return known->second;
  }

  static void Set(Op& op, std::string_view name, int64_t value) {
    for (Attribute& attribute : op.attributes) {
      if (attribute.name == name) attribute.value = static_cast<double>(value);
    }
  }

  // The op's one slot, from its attributes and operands.
  void Measure(Op& op) const {
    const OpSlot& row = StepOf(op).slots[0];
    Slot& slot = op.slots.front();
    slot.signature = SignatureOf(op, row);
    slot.flops = op.batch * row.flops(op);
    slot.traffic = Bytes(0);
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) slot.traffic += to_.tensor(id).size;
    }
  }

  const Trace& from_;
  Trace to_;
  std::map<std::string, TensorId> pieces_;  // by name
};

}  // namespace

LeastMemory LeastMmcnnMemory(const Trace& trace, Bytes alignment, bool divide) {
  const Sizes sizes(trace, alignment);
  LeastMemory least;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const auto id = static_cast<OpId>(i);
    const Need need = sizes.NeedOf(id);
    Bytes size = need.maps + need.parameters;
    if (divide && AxisOf(trace.ops[i])) {
      size = need.maps + sizes.LargestSlice(id, sizes.Fitting(id, 1, /*limit=*/Bytes(0)));
    }
    if (size > least.size) least = {size, trace.ops[i].name};
  }
  return least;
}

DividedInference DivideForMmcnn(const Trace& trace, Bytes limit, Bytes alignment,
                                const MmcnnRule& rule) {
  const Sizes sizes(trace, alignment);
  std::vector<MmcnnLayer> layers;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Need need = sizes.NeedOf(static_cast<OpId>(i));
    layers.push_back(
        {static_cast<double>(need.maps.count()), static_cast<double>(need.parameters.count())});
  }
  const std::vector<MmcnnStep> steps =
      ScheduleMmcnn(layers, static_cast<double>(limit.count()), rule.most_parts);
  const auto ahead = static_cast<size_t>(rule.ahead);
  Divider divider(trace);
  std::vector<OpId> first;   // of each undivided op
  std::vector<size_t> head;  // and the undivided op from which on its parameters are prefetched
  std::vector<size_t> segments{0};  // where each begins
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    first.push_back(static_cast<OpId>(divider.ops()));
    const bool divisible = AxisOf(op).has_value() && layers[i].weights > 0;
    const size_t segment = segments[segments.size() - std::min(segments.size(), ahead)];
    const bool prefetched =
        steps[segments.back()].prefetched > 0 || !rule.divide || segment < segments.back();
    // What a segment's other layers have is small, and needed at once.
    head.push_back(!divisible ? std::max<size_t>(segment, 1) - 1 : prefetched ? segment : i);
    std::vector<Slice> slices;
    if (rule.divide && divisible) {
      slices = sizes.Fitting(static_cast<OpId>(i), steps[i].parts, limit);
    }
    if (slices.size() > 1) {
      divider.Divide(op, slices);
    } else {
      divider.Copy(op);
    }
    if (divisible) segments.push_back(i + 1);
  }
  first.push_back(static_cast<OpId>(divider.ops()));
  DividedInference divided{divider.Take(), {}};
  divided.prefetch_from.resize(divided.trace.tensors.size());
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    for (size_t at = Index(first[i]); at < Index(first[i + 1]); ++at) {
      for (const TensorId input : divided.trace.ops[at].inputs) {
        divided.prefetch_from[Index(divided.trace.Root(input))] = first[head[i]];
      }
    }
  }
  return divided;
}

}  // namespace spillway
