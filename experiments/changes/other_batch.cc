#include "experiments/changes/other_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "traces/base/error.h"
#include "traces/liveness.h"
#include "traces/lowering/lowering.h"
#include "traces/lowering/preset.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

bool Stays(TensorKind kind) {
  return kind == TensorKind::kParameter || kind == TensorKind::kParameterGradient ||
         kind == TensorKind::kOptimizerState;
}

int64_t Elements(const Tensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies());
}

// Sets the name and the batch of a trace, and forgets what was measured of the whole step.
void SetBatch(Trace& trace, int64_t batch) {
  for (Op& op : trace.ops) {
    if (op.phase != Phase::kUpdate && op.batch == trace.batch) op.batch = batch;
  }
  trace.batch = batch;
  trace.name = fmt::format("{}:{}", trace.network, batch);
  trace.compiled.clear();
  if (!trace.recording) return;
  trace.recording->step = trace.recording->plain_step = {};
  trace.recording->allocated = trace.recording->reserved = {};
}

// Finds the tensors whose sizes are proportional to the batch.
class Proportions {
 public:
  explicit Proportions(const Trace& trace)
      : trace_(trace),
        liveness_(trace),
        depends_(trace.tensors.size()),
        of_parameter_(trace.tensors.size()),
        per_channel_(trace.tensors.size()) {
    for (const Tensor& tensor : trace.tensors) {
      if (tensor.kind == TensorKind::kParameter) parameters_.insert(Elements(tensor));
    }
    Follow();
    FindGradientsOfParameters();
  }

  // Returns true iff the tensor is as many times as large at as many times the batch.
  bool Scales(TensorId id) const {
    const size_t root = Index(liveness_.Root(id));
    return depends_[root] && !of_parameter_[root] && !per_channel_[Index(id)] && IsMultiple(id);
  }

  // Returns the index of the dimension that holds the batch. REQUIRES: `Scales(id)`.
  size_t BatchDimension(TensorId id) const {
    const std::vector<int64_t>& shape = trace_.tensor(id).shape;
    auto found = std::ranges::find(shape, trace_.batch);
    if (found == shape.end()) {
      found = std::ranges::find_if(shape, [&](int64_t n) { return n % trace_.batch == 0; });
    }
    return static_cast<size_t>(found - shape.begin());
  }

 private:
  bool IsMultiple(TensorId id) const {
    const auto whole = [&](int64_t extent) { return extent > 0 && extent % trace_.batch == 0; };
    return std::ranges::any_of(trace_.tensor(id).shape, whole);
  }

  // Marks the step's data, and the storages that ops of forward and backward compute from it.
  void Follow() {
    for (size_t i = 0; i < depends_.size(); ++i) {
      depends_[i] = trace_.tensors[i].kind == TensorKind::kInput;
    }
    for (const Op& op : trace_.ops) {
      if (op.phase == Phase::kUpdate) continue;
      const auto depends = [&](TensorId id) { return depends_[Index(liveness_.Root(id))]; };
      if (!MakesData(op) && !std::ranges::any_of(op.inputs, depends)) continue;
      for (const auto* written : {&op.outputs, &op.scratch}) {
        for (const TensorId id : *written) {
          const TensorId root = liveness_.Root(id);
          if (!Stays(trace_.tensor(root).kind)) depends_[Index(root)] = true;
          per_channel_[Index(id)] = IsPerChannel(op, id);
        }
      }
    }
  }

  // Returns true if the op reads nothing, and writes one row or more for each sample.
  bool MakesData(const Op& op) const {
    return trace_.batch > 1 && op.inputs.empty() &&
           std::ranges::any_of(op.outputs, [&](TensorId id) {
             const std::vector<int64_t>& shape = trace_.tensor(id).shape;
             return !shape.empty() && shape.front() == trace_.batch;
           });
  }

  // Returns true if the op has a parameter of one dimension with the shape of the tensor.
  bool IsPerChannel(const Op& op, TensorId id) const {
    const Tensor& tensor = trace_.tensor(id);
    return tensor.shape.size() == 1 && std::ranges::any_of(op.inputs, [&](TensorId input) {
             const Tensor& other = trace_.tensor(input);
             return other.kind == TensorKind::kParameter && other.shape == tensor.shape;
           });
  }

  // Marks what backward computes of the size of a parameter, and only to make the gradient of a
  // parameter of it.
  void FindGradientsOfParameters() {
    for (size_t i = trace_.tensors.size(); i-- > 0;) {
      of_parameter_[i] = Stays(trace_.tensors[i].kind);
    }
    for (size_t i = trace_.ops.size(); i-- > 0;) {
      const Op& op = trace_.ops[i];
      if (op.phase != Phase::kBackward) continue;
      for (const TensorId output : op.outputs) {
        const TensorId root = liveness_.Root(output);
        if (!of_parameter_[Index(root)]) of_parameter_[Index(root)] = OnlyForParameters(root);
      }
    }
  }
  bool OnlyForParameters(TensorId root) const {
    const int64_t elements = Elements(trace_.tensor(root));
    if (!parameters_.contains(elements)) return false;
    bool read = false;
    for (const OpId use : liveness_.Uses(root)) {
      const Op& op = trace_.op(use);
      const auto is_root = [&](TensorId id) { return liveness_.Root(id) == root; };
      if (std::ranges::none_of(op.inputs, is_root)) continue;
      if (std::ranges::all_of(op.outputs, is_root)) continue;  // in place
      const auto makes = [&](TensorId id) {
        const TensorId made = liveness_.Root(id);
        return of_parameter_[Index(made)] && Elements(trace_.tensor(made)) == elements;
      };
      if (op.phase != Phase::kUpdate && std::ranges::none_of(op.outputs, makes)) return false;
      read = true;
    }
    return read;
  }

  const Trace& trace_;
  const Liveness liveness_;
  std::set<int64_t> parameters_;    // their numbers of elements
  std::vector<bool> depends_;       // by storage: on the step's data
  std::vector<bool> of_parameter_;  // by storage: a parameter, its state or its gradient
  std::vector<bool> per_channel_;   // by tensor
};

// A factor by which quantities are multiplied: one batch over another.
struct Factor {
  int64_t batch, of;

  int64_t Of(int64_t value) const {
    return static_cast<int64_t>(static_cast<Int128>(value) * batch / of);
  }
  // Returns the value with only its `share` multiplied.
  int64_t Of(int64_t value, double share) const {
    const auto part = std::llround(static_cast<double>(value) * share);
    return value - part + Of(part);
  }
};

// Returns the share of the bytes of the op's operands that are proportional to the batch.
double ShareOf(const Trace& trace, const Op& op, const Proportions& proportions) {
  Bytes all, scaled;
  for (const auto* operands : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *operands) {
      all += trace.tensor(id).size;
      if (proportions.Scales(id)) scaled += trace.tensor(id).size;
    }
  }
  if (all == Bytes()) return 0;
  return static_cast<double>(scaled.count()) / static_cast<double>(all.count());
}

// Scales the attributes of a recorded operator that count samples (traces/FORMAT.md). `share` is
// that of its operands.
void ScaleAttributes(const Proportions& proportions, Factor factor, double share, Op& op) {
  const bool sums =
      std::ranges::none_of(op.outputs, [&](TensorId id) { return proportions.Scales(id); });
  const bool has_batches = op.FindAttribute("batches").value_or(1) > 1;
  const auto counts_samples = [&](const std::string& name) {
    if (name == "rows") return !sums && !has_batches;
    if (name == "depth" || name == "row") return sums && !has_batches;
    if (name == "batches") return has_batches;
    if (name == "elements") return share >= 0.5;
    return name == "batch" || name == "indices";
  };
  for (Attribute& attribute : op.attributes) {
    const int64_t value = std::llround(attribute.value);
    if (value % factor.of == 0 && counts_samples(attribute.name)) {
      attribute.value = static_cast<double>(factor.Of(value));
    }
  }
}

void ScaleWork(const Trace& trace, const Proportions& proportions, Factor factor, Op& op) {
  const double share = ShareOf(trace, op, proportions);
  if (share == 0) return;
  const bool computes = op.flops() > 0;
  for (Slot& slot : op.slots) {
    slot.flops = factor.Of(slot.flops);
    slot.traffic = Bytes(factor.Of(slot.traffic.count(), share));
  }
  if (!op.recorded) return;
  ScaleAttributes(proportions, factor, share, op);
  RecordedCost& recorded = *op.recorded;
  recorded.time =
      Duration::Picoseconds(factor.Of(recorded.time.picoseconds(), computes ? 1 : share));
  recorded.workspace = Bytes(factor.Of(recorded.workspace.count()));
}

// Returns true iff the traces have the same ops, which use the same tensors.
bool SameOps(const Trace& one, const Trace& other) {
  const auto same_tensor = [](const Tensor& a, const Tensor& b) {
    return a.kind == b.kind && a.alias_of == b.alias_of && a.part_of == b.part_of &&
           a.shape.size() == b.shape.size();
  };
  const auto same_op = [](const Op& a, const Op& b) {
    return a.name == b.name && a.layer == b.layer && a.phase == b.phase && a.inputs == b.inputs &&
           a.outputs == b.outputs && a.scratch == b.scratch && a.slots.size() == b.slots.size();
  };
  return std::ranges::equal(one.tensors, other.tensors, same_tensor) &&
         std::ranges::equal(one.ops, other.ops, same_op);
}

// A curve through the values at two batches, or at two lengths: a line, or for what grows faster
// than a length, a part that is proportional to it and one that is proportional to its square.
struct Curve {
  int64_t one, other, wanted;
  bool bends = false;  // false: always a line

  // Returns the value at `wanted`, rounded down and at least 0.
  int64_t At(int64_t at_one, int64_t at_other) const {
    if (bends && (Int128{at_other} * one > Int128{at_one} * other) == (other > one)) {
      return Bent(at_one, at_other);
    }
    const auto rise = static_cast<Int128>(at_other - at_one) * (wanted - one);
    const Int128 run = other - one;
    Int128 change = rise / run;
    if (rise % run != 0 && (rise < 0) != (run < 0)) --change;
    return std::max<int64_t>(0, at_one + static_cast<int64_t>(change));
  }
  Bytes At(Bytes at_one, Bytes at_other) const {
    return Bytes(At(at_one.count(), at_other.count()));
  }
  Duration At(Duration at_one, Duration at_other) const {
    return Duration::Picoseconds(At(at_one.picoseconds(), at_other.picoseconds()));
  }

 private:
  int64_t Bent(int64_t at_one, int64_t at_other) const {
    const auto of = [](int64_t value) { return static_cast<long double>(value); };
    const long double slope = of(at_one) / of(one), far = of(at_other) / of(other);
    const long double rise = (far - slope) / of(other - one);
    return std::llround((slope + rise * of(wanted - one)) * of(wanted));
  }
};

// Returns the size of a tensor of the shape, each of whose elements takes as many bytes as in `one`
// and `other`; nullopt if these differ in that.
std::optional<Bytes> SizeOf(const std::vector<int64_t>& shape, const Tensor& one,
                            const Tensor& other) {
  const int64_t elements = Elements(one);
  if (elements <= 0 || one.size.count() % elements != 0) return std::nullopt;
  const int64_t bytes = one.size.count() / elements;
  if (other.size.count() != bytes * Elements(other)) return std::nullopt;
  Tensor wanted;
  wanted.shape = shape;
  return Bytes(bytes * Elements(wanted));
}

// Makes views end within their storages, which the rounding of both may have prevented.
void KeepViewsInside(Trace& trace) {
  for (Tensor& tensor : trace.tensors) {
    const auto& whole = tensor.alias_of ? tensor.alias_of : tensor.part_of;
    if (!whole) continue;
    const Bytes size = trace.tensor(*whole).size;
    tensor.offset = std::min(tensor.offset, size);
    tensor.size = std::min(tensor.size, size - tensor.offset);
  }
}

// Returns true iff what the updates write has the same shapes in both. REQUIRES: `SameOps`.
bool TrainTheSame(const Trace& one, const Trace& other) {
  for (size_t i = 0; i < one.ops.size(); ++i) {
    if (one.ops[i].phase != Phase::kUpdate) continue;
    for (size_t j = 0; j < one.ops[i].outputs.size(); ++j) {
      if (one.tensor(one.ops[i].outputs[j]).shape != other.tensor(other.ops[i].outputs[j]).shape) {
        return false;
      }
    }
  }
  return true;
}

// Returns words about the first ops that differ, empty if there are none.
std::string FirstDifference(const Trace& one, const Trace& other) {
  for (size_t i = 0; i < std::min(one.ops.size(), other.ops.size()); ++i) {
    if (one.ops[i].name == other.ops[i].name) continue;
    return fmt::format(": op {} is '{}' and '{}'", i, one.ops[i].name, other.ops[i].name);
  }
  if (one.ops.size() == other.ops.size()) return "";
  return fmt::format(": they have {} and {} ops", one.ops.size(), other.ops.size());
}

// The different extents of two shapes, each pair once.
using Extents = std::vector<std::pair<int64_t, int64_t>>;

// Returns the extents in which the data of the two steps differ, in the order of the tensors. Data
// that the program made before the step look like parameters. REQUIRES: `SameOps(one, other)`.
Extents DifferentExtents(const Trace& one, const Trace& other) {
  Extents extents;
  for (const TensorKind kind : {TensorKind::kInput, TensorKind::kParameter}) {
    for (size_t i = 0; i < one.tensors.size(); ++i) {
      if (one.tensors[i].kind != kind || one.tensors[i].alias_of) continue;
      for (size_t d = 0; d < one.tensors[i].shape.size(); ++d) {
        const std::pair pair(one.tensors[i].shape[d], other.tensors[i].shape[d]);
        if (pair.first != pair.second && std::ranges::find(extents, pair) == extents.end()) {
          extents.push_back(pair);
        }
      }
    }
    if (!extents.empty()) break;
  }
  return extents;
}

// Returns the trace with all numbers on the curves through those of the two. REQUIRES:
// `AreOfOneProgram(one, other)`.
Trace Interpolated(const Trace& one, const Trace& other, const Curve& curve) {
  const Curve line{curve.one, curve.other, curve.wanted};
  Trace trace = one;
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    Tensor& tensor = trace.tensors[i];
    const Tensor& far = other.tensors[i];
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      tensor.shape[d] = line.At(tensor.shape[d], far.shape[d]);
    }
    const std::optional<Bytes> size = SizeOf(tensor.shape, one.tensors[i], far);
    tensor.size = size ? *size : curve.At(tensor.size, far.size);
    tensor.offset = line.At(tensor.offset, far.offset);
  }
  KeepViewsInside(trace);
  for (size_t i = 0; i < one.ops.size(); ++i) {
    Op& op = trace.ops[i];
    const Op& far = other.ops[i];
    for (size_t s = 0; s < op.slots.size(); ++s) {
      op.slots[s].flops = curve.At(op.slots[s].flops, far.slots[s].flops);
      op.slots[s].traffic = curve.At(op.slots[s].traffic, far.slots[s].traffic);
    }
    for (size_t a = 0; a < std::min(op.attributes.size(), far.attributes.size()); ++a) {
      Attribute& attribute = op.attributes[a];
      const Attribute& other_one = far.attributes[a];
      if (attribute.name != other_one.name || attribute.value == other_one.value) continue;
      if (attribute.name == "alignment") continue;  // the only number that counts nothing
      attribute.value = static_cast<double>(
          curve.At(std::llround(attribute.value), std::llround(other_one.value)));
    }
    RecordedCost& cost = *op.recorded;
    cost = {curve.At(cost.time, far.recorded->time), line.At(cost.gap, far.recorded->gap),
            line.At(cost.host, far.recorded->host),
            curve.At(cost.workspace, far.recorded->workspace)};
  }
  return trace;
}

// Returns true if the program would lower the network to this very trace.
bool IsLowered(const Trace& trace) {
  if (trace.recording) return false;
  try {
    return LowerNetwork(BuildNetwork(trace.network), {trace.batch, trace.preset, trace.training}) ==
           trace;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

bool AreOfOneProgram(const Trace& one, const Trace& other) {
  return one.recording && other.recording && one.recording->device == other.recording->device &&
         SameOps(one, other) && (one.network == other.network || TrainTheSame(one, other));
}

std::string_view Name(BatchSource source) {
  constexpr std::string_view kNames[] = {"given", "lowered", "interpolated", "scaled"};
  return kNames[static_cast<size_t>(source)];
}

std::string_view Name(StepQuantity quantity) {
  return quantity == StepQuantity::kBatch ? "batch" : "length";
}

Trace ScaledToBatch(const Trace& trace, int64_t batch) {
  const Proportions proportions(trace);
  const Factor factor{batch, trace.batch};
  Trace scaled = trace;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (!proportions.Scales(id)) continue;
    Tensor& tensor = scaled.tensors[i];
    int64_t& extent = tensor.shape[proportions.BatchDimension(id)];
    extent = factor.Of(extent);
    tensor.size = Bytes(factor.Of(tensor.size.count()));
    if (tensor.alias_of) tensor.offset = Bytes(factor.Of(tensor.offset.count()));
  }
  KeepViewsInside(scaled);
  for (Op& op : scaled.ops) ScaleWork(trace, proportions, factor, op);
  SetBatch(scaled, batch);
  scaled.Validate();
  return scaled;
}

std::optional<Trace> InterpolatedToBatch(const Trace& one, const Trace& other, int64_t batch) {
  if (!AreOfOneProgram(one, other) || one.batch == other.batch) return std::nullopt;
  Trace trace = Interpolated(one, other, {one.batch, other.batch, batch});
  SetBatch(trace, batch);
  trace.Validate();
  return trace;
}

StepFamily::StepFamily(StepQuantity quantity, std::shared_ptr<const Trace> one,
                       std::string_view name, std::shared_ptr<const Trace> other,
                       std::string_view other_name)
    : quantity_(quantity), one_(std::move(one)), other_(std::move(other)), at_one_(one_->batch) {
  const std::string_view varied = Name(quantity);
  if (!other_) {
    if (quantity == StepQuantity::kBatch) return;
    throw UsageError(fmt::format(
        "vary: the length varies between two recordings of one program, and '{}' is one; a network "
        "of the program such as gpt2:8 needs none",
        name));
  }
  if (!AreOfOneProgram(*one_, *other_)) {
    throw UsageError(
        fmt::format("vary: '{}' and '{}' are not recordings of the same operators on "
                    "one device{}",
                    name, other_name, FirstDifference(*one_, *other_)));
  }
  at_other_ = other_->batch;
  const Extents extents = DifferentExtents(*one_, *other_);
  if (quantity == StepQuantity::kLength) {
    if (at_one_ != at_other_) {
      throw UsageError(
          fmt::format("vary: '{}' and '{}' differ in the batch, which is {} and {}; "
                      "expected one batch and two lengths",
                      name, other_name, at_one_, at_other_));
    }
    if (!extents.empty()) std::tie(at_one_, at_other_) = extents.front();
  }
  if (at_one_ == at_other_ || (quantity == StepQuantity::kLength && extents.empty())) {
    throw UsageError(fmt::format(
        "vary: '{}' and '{}' have the same {}{}", name, other_name, varied,
        quantity == StepQuantity::kBatch ? fmt::format(" of {}", at_one_) : " of all data"));
  }
  for (const auto& [here, there] : extents) {
    const bool follows = quantity == StepQuantity::kBatch
                             ? Int128{here} * at_other_ == Int128{there} * at_one_
                             : there - here == at_other_ - at_one_;
    if (follows) continue;
    throw UsageError(
        fmt::format("vary: '{}' and '{}' differ not only in the {} ({} and {}), but also in an "
                    "extent of their data ({} and {})",
                    name, other_name, varied, at_one_, at_other_, here, there));
  }
}

BatchTrace StepFamily::At(int64_t value) const {
  if (at_) return at_(value);
  if (quantity_ == StepQuantity::kBatch) {
    std::vector<std::shared_ptr<const Trace>> others;
    if (other_) others.push_back(other_);
    return AtBatch(one_, others, value);
  }
  if (value == at_one_) return {one_, BatchSource::kGiven};
  Trace trace = Interpolated(*one_, *other_, {at_one_, at_other_, value, true});
  SetBatch(trace, trace.batch);
  trace.Validate();
  return {std::make_shared<const Trace>(std::move(trace)), BatchSource::kInterpolated};
}

BatchTrace AtBatch(const std::shared_ptr<const Trace>& trace,
                   std::span<const std::shared_ptr<const Trace>> others, int64_t batch) {
  if (batch == trace->batch) return {trace, BatchSource::kGiven};
  const auto made = [](Trace of, BatchSource source) {
    return BatchTrace{std::make_shared<const Trace>(std::move(of)), source};
  };
  if (IsLowered(*trace)) {
    return made(LowerNetwork(BuildNetwork(trace->network), {batch, trace->preset, trace->training}),
                BatchSource::kLowered);
  }
  for (const auto& other : others) {
    if (auto between = InterpolatedToBatch(*trace, *other, batch)) {
      return made(*std::move(between), BatchSource::kInterpolated);
    }
  }
  return made(ScaledToBatch(*trace, batch), BatchSource::kScaled);
}

}  // namespace spillway::lab
