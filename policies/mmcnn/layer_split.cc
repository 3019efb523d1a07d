#include "policies/mmcnn/layer_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "policies/mmcnn/bands.h"
#include "policies/mmcnn/slice_ops.h"
#include "policies/mmcnn/slice_schedule.h"
#include "traces/base/error.h"
#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// Writes the divided trace op by op. Tensors keep their numbers, and new tensors follow them.
class Divider {
 public:
  explicit Divider(const Trace& trace) : from_(trace), to_(trace) { to_.ops.clear(); }

  void Copy(const Op& op) { to_.ops.push_back(op); }

  void Divide(const Op& op, const std::vector<Slice>& slices) {
    const ChannelAxis axis = ChannelAxisOf(op).value();
    const int64_t channels = slices.back().to;
    const int64_t inputs = op.IntAttribute(axis.inputs, 1);
    const int64_t in_group = channels / axis.groups;
    const int64_t depth = inputs / axis.groups;
    for (const Slice& slice : slices) {
      const int64_t first_group = slice.from / in_group;
      const int64_t groups = std::max<int64_t>(slice.size() / in_group, 1);
      Op part = op;
      part.name += Suffix(slice);
      for (TensorId& input : part.inputs) {
        const Tensor& tensor = from_.tensor(input);
        if (IsParameter(tensor)) {
          input = Piece(input, slice, channels, /*view=*/false);
        } else if (groups < axis.groups) {
          input = Piece(input, {first_group * depth, (first_group + groups) * depth}, inputs, true);
        }
      }
      for (TensorId& output : part.outputs) output = Piece(output, slice, channels, true);
      SetAttribute(part, axis.outputs, slice.size());
      SetAttribute(part, axis.inputs, groups * depth);
      SetAttribute(part, "groups", groups);
      part.slots = {ForwardSlot(to_, part)};
      to_.ops.push_back(std::move(part));
    }
  }

  Trace Take() { return std::move(to_); }
  size_t ops() const { return to_.ops.size(); }

 private:
  static std::string Suffix(const Slice& slice) {
    return fmt::format("[{}:{}]", slice.from, slice.to);
  }

  // Returns some channels of a tensor, as a view or as a part of the tensor.
  TensorId Piece(TensorId of, const Slice& slice, int64_t channels, bool view) {
    Tensor piece = from_.tensor(of);
    piece.name += Suffix(slice);
    const auto [known, is_new] =
        pieces_.try_emplace(piece.name, static_cast<TensorId>(to_.tensors.size()));
    if (!is_new) return known->second;
    const Bytes channel(piece.size.count() / channels);
    // The channels of an activation are its second dimension, after the only sample.
    const size_t dimension = view ? 1 : 0;
    if (piece.shape.size() <= dimension || piece.shape[dimension] != channels) {
      throw InputError(fmt::format("tensor '{}': expected a shape with {} channels",
                                   from_.tensor(of).name, channels));
    }
    piece.shape[dimension] = slice.size();
    piece.size = channel * slice.size();
    piece.alias_of = view ? std::optional(of) : std::nullopt;
    piece.part_of = view ? std::nullopt : std::optional(of);
    piece.offset = channel * slice.from;
    to_.tensors.push_back(std::move(piece));
    return known->second;
  }

  const Trace& from_;
  Trace to_;
  std::map<std::string, TensorId> pieces_;  // by name
};

// Returns the largest need of an op of the trace. With `divide`, parameters are in the finest
// slices.
LeastMemory LargestNeed(const Trace& trace, Bytes alignment, bool divide) {
  const OpNeeds needs(trace, alignment);
  LeastMemory largest;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const auto id = static_cast<OpId>(i);
    const OpNeed need = needs.Of(id);
    const Bytes size = divide ? needs.LeastOf(id) : need.maps + need.parameters;
    if (size > largest.size) largest = {size, trace.layer(trace.ops[i].layer).name};
  }
  return largest;
}

// Returns the largest need of an op after the trace has been divided for the limit.
LeastMemory NeedInBands(const Trace& trace, Bytes limit, Bytes alignment) {
  return LargestNeed(DivideIntoBands(trace, limit, alignment, Terms::kOfOneOutput), alignment,
                     /*divide=*/true);
}

// Returns the memory that is needed however finely the trace is divided into bands.
LeastMemory NeedWithoutBands(const Trace& trace, Bytes alignment) {
  const OpNeeds needs(trace, alignment);
  LeastMemory largest;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Bytes size = RoundUp(
        LeastInBands(trace, trace.ops[i]).value_or(needs.LeastOf(static_cast<OpId>(i))), alignment);
    if (size <= largest.size) continue;
    largest = {size, trace.layer(trace.ops[i].layer).name};
  }
  return largest;
}

}  // namespace

LeastMemory LeastMmcnnMemory(const Trace& trace, Bytes alignment, bool divide) {
  if (!divide) return LargestNeed(trace, alignment, divide);
  const auto divided_for = [&](Bytes limit) { return NeedInBands(trace, limit, alignment); };
  // A small limit makes many ops, so no limit below this floor is tried.
  const LeastMemory floor = NeedWithoutBands(trace, alignment);
  if (floor.size > Bytes(0) && divided_for(floor.size).size <= floor.size) return floor;
  const auto narrow = [&](LeastMemory enough) {
    Bytes too_little = floor.size;
    while (enough.size - too_little > alignment) {
      const Bytes middle =
          RoundUp(too_little + Bytes((enough.size - too_little).count() / 2), alignment);
      const LeastMemory need = divided_for(middle);
      if (need.size <= middle) {
        enough = {middle, need.layer};
      } else {
        too_little = middle;
      }
    }
    return enough;
  };
  LeastMemory least = narrow(LargestNeed(trace, alignment, divide));
  // Finer bands are not always better: a smaller limit may be enough even if a larger one is not.
  for (int64_t eighths = 7; eighths > 3; --eighths) {
    const Bytes lower = RoundDown(Bytes(least.size.count() / 8 * eighths), alignment);
    if (lower < floor.size) break;
    const LeastMemory need = divided_for(lower);
    if (need.size > lower) continue;
    least = narrow({lower, need.layer});
    eighths = 8;
  }
  return least;
}

bool FitsMmcnn(const Trace& trace, Bytes limit, Bytes alignment, bool divide) {
  if (divide && NeedWithoutBands(trace, alignment).size > limit) return false;
  if (divide && NeedInBands(trace, limit, alignment).size <= limit) return true;
  return LeastMmcnnMemory(trace, alignment, divide).size <= limit;
}

DividedInference DivideForMmcnn(const Trace& undivided, Bytes limit, Bytes alignment,
                                const MmcnnRule& rule) {
  Trace trace = rule.divide ? DivideIntoBands(undivided, limit, alignment) : undivided;
  if (rule.divide && LargestNeed(trace, alignment, rule.divide).size > limit) {
    trace = DivideIntoBands(undivided, LeastMmcnnMemory(undivided, alignment).size, alignment);
  }
  const OpNeeds needs(trace, alignment);
  std::vector<MmcnnLayer> layers;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const OpNeed need = needs.Of(static_cast<OpId>(i));
    layers.push_back(
        {static_cast<double>(need.maps.count()), static_cast<double>(need.parameters.count())});
  }
  const std::vector<MmcnnStep> steps =
      ScheduleMmcnn(layers, static_cast<double>(limit.count()), rule.most_parts);
  const auto divisible = [&](size_t i) {
    return ChannelAxisOf(trace.ops[i]) && FindInput(trace.ops[i], Role::kWeight) &&
           layers[i].weights > 0;
  };
  // The bands of a convolution share its weights, so all bands have the same slices.
  std::map<TensorId, int64_t> counts;  // by weight
  for (size_t i = 0; i < trace.ops.size() && rule.divide; ++i) {
    if (!divisible(i)) continue;
    int64_t& count = counts[*FindInput(trace.ops[i], Role::kWeight)];
    count = std::max(count, needs.SlicesWithin(static_cast<OpId>(i), steps[i].parts, limit));
  }
  const auto ahead = static_cast<size_t>(rule.ahead);
  Divider divider(trace);
  std::vector<OpId> first;          // by undivided op: its first op in the divided trace
  std::vector<size_t> head;         // by undivided op: the one at which its parameters are fetched
  std::vector<size_t> segments{0};  // the undivided op at which each segment begins
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    first.push_back(static_cast<OpId>(divider.ops()));
    const size_t segment = segments[segments.size() - std::min(segments.size(), ahead)];
    const bool prefetched =
        steps[segments.back()].prefetched > 0 || !rule.divide || segment < segments.back();
    // The parameters of a segment's other layers are small, and needed at once.
    head.push_back(!divisible(i) ? std::max<size_t>(segment, 1) - 1 : prefetched ? segment : i);
    const int64_t count = rule.divide && divisible(i) ? counts[*FindInput(op, Role::kWeight)] : 1;
    if (count > 1) {
      divider.Divide(op, SlicesOf(op, count));
    } else {
      divider.Copy(op);
    }
    if (divisible(i)) segments.push_back(i + 1);
  }
  first.push_back(static_cast<OpId>(divider.ops()));
  DividedInference divided{divider.Take(), {}};
  divided.prefetch_from.assign(divided.trace.tensors.size(), OpId{0xffffffff});
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    for (size_t at = Index(first[i]); at < Index(first[i + 1]); ++at) {
      for (const TensorId input : divided.trace.ops[at].inputs) {
        OpId& from = divided.prefetch_from[Index(divided.trace.Root(input))];
        from = std::min(from, first[head[i]]);
      }
    }
  }
  return divided;
}

}  // namespace spillway::policies
