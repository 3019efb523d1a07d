#include "experiments/changes/autocast_step.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "policies/recorded/pytorch_plans.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

// Products that are no op types of their own.
constexpr std::string_view kInBfloat16[] = {"aten::mv", "aten::addmv", "aten::addr", "aten::prelu"};

// PyTorch's list, with the operators that the functions of the list dispatch to.
constexpr std::string_view kInFloat32[] = {
    "aten::acos",
    "aten::asin",
    "aten::cosh",
    "aten::erfinv",
    "aten::exp",
    "aten::expm1",
    "aten::log",
    "aten::log10",
    "aten::log2",
    "aten::log1p",
    "aten::reciprocal",
    "aten::rsqrt",
    "aten::sinh",
    "aten::tan",
    "aten::pow",
    "aten::softplus",
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::nll_loss_forward",
    "aten::nll_loss2d_forward",
    "aten::mse_loss",
    "aten::smooth_l1_loss",
    "aten::huber_loss",
    "aten::soft_margin_loss",
    "aten::multi_margin_loss",
    "aten::binary_cross_entropy_with_logits",
    "aten::renorm",
    "aten::logsumexp",
    "aten::_cdist_forward",
    "aten::prod",
    "aten::_softmax",
    "aten::_log_softmax",
    "aten::cumprod",
    "aten::norm",
    "aten::linalg_vector_norm",
};

bool IsIn(std::span<const std::string_view> names, const Op& op) {
  return std::ranges::find(names, OperatorOf(op)) != names.end();
}

bool IsUpsampling(const Op& op) {
  return OperatorOf(op).find("::upsample_") != std::string::npos ||
         OperatorOf(op).find("::_upsample_") != std::string::npos;
}
bool IsSum(const Op& op) { return OperatorOf(op) == "aten::sum"; }
bool IsBatchNorm(const Op& op) { return OperatorOf(op).find("batch_norm") != std::string::npos; }
bool IsAddition(const Op& op) {
  return OperatorOf(op) == "aten::add" || OperatorOf(op) == "aten::add_";
}

enum class Width : uint8_t { kOther, kBfloat16, kFloat32 };  // the type of a tensor's elements

class Autocast {
 public:
  Autocast(const Trace& trace, const Device& device, const CostModel& cost)
      : from_(trace),
        work_(device, cost),
        liveness_(trace),
        to_(trace),
        made_(trace.tensors.size()),
        forward_(trace.layers.size()),
        casts_(trace.layers.size()),
        has_backward_(trace.layers.size()) {
    for (size_t i = 0; i < trace.tensors.size(); ++i) roots_.push_back(liveness_.Root(ThisId(i)));
    for (const Tensor& tensor : trace.tensors) {
      widths_.push_back(IsFp32(tensor) ? Width::kFloat32 : Width::kOther);
    }
    for (const Op& op : trace.ops) {
      if (op.phase == Phase::kBackward) has_backward_[Index(op.layer)] = true;
    }
  }

  Trace Build() {
    to_.ops.clear();
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      const Op& op = from_.ops[i];
      std::optional<size_t>& forward = forward_[Index(op.layer)];
      const bool again = op.phase == Phase::kBackward && !forward;  // a checkpoint runs it again
      if (op.phase == Phase::kUpdate) {
        EndLayer();
        to_.ops.push_back(op);
      } else if (op.phase == Phase::kForward || again) {
        EndLayer();
        forward = i;
        Forward(op);
      } else {
        Backward(i);
      }
      places_.push_back(static_cast<OpId>(to_.ops.size() - 1));
    }
    EndLayer();
    Hold();
    Shrink();
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  // The op that made a storage.
  struct Maker {
    bool backward = false;
    LayerId layer{};
  };

  // A gradient in the type in which its op computes it, which is cast when its layer ends.
  struct Waiting {
    TensorId computed;
    TensorId gradient;
  };

  static TensorId ThisId(size_t index) { return static_cast<TensorId>(index); }

  TensorId Root(TensorId id) const { return roots_[Index(id)]; }
  // A view in another type than its storage keeps its type.
  Width WidthOf(TensorId id) const {
    const bool same = to_.tensor(id).dtype == to_.tensor(Root(id)).dtype;
    return widths_[Index(same ? Root(id) : id)];
  }
  bool IsFloat(TensorId id) const { return WidthOf(id) != Width::kOther; }
  int64_t ElementsOf(TensorId id) const { return Elements(to_.tensor(id)); }
  TensorKind KindOf(TensorId id) const { return to_.tensor(Root(id)).kind; }
  const std::optional<Maker>& MakerOf(TensorId id) const { return made_[Index(Root(id))]; }
  bool IsGradient(TensorId id) const { return MakerOf(id) && MakerOf(id)->backward; }

  // Returns the width of the result of an operator on these tensors. Those with one element count
  // only if all have one.
  Width Widest(std::span<const TensorId> ids) const {
    Width large = Width::kOther, any = Width::kOther;
    for (const TensorId id : ids) {
      any = std::max(any, WidthOf(id));
      if (ElementsOf(id) > 1) large = std::max(large, WidthOf(id));
    }
    const Width widest = large == Width::kOther ? any : large;
    return widest == Width::kOther ? Width::kFloat32 : widest;
  }

  // Adds a tensor with the elements of `like`.
  TensorId AddTensor(TensorId like, Width width, Phase phase) {
    Tensor tensor = from_.tensor(like);
    const bool half = width == Width::kBfloat16;
    tensor.name += half ? ".bfloat16." : ".float32.";
    tensor.name += std::to_string(to_.tensors.size());
    tensor.kind = phase == Phase::kForward ? TensorKind::kActivation : TensorKind::kGradient;
    tensor.size = Bytes(ElementsOf(like) * (half ? 2 : 4));
    tensor.dtype = half ? DataType::kBfloat16 : DataType::kFloat32;
    tensor.offset = Bytes();
    tensor.alias_of.reset();
    tensor.part_of.reset();
    tensor.held_until.reset();
    tensor.request.reset();
    const TensorId id = ThisId(to_.tensors.size());
    to_.tensors.push_back(std::move(tensor));
    roots_.push_back(id);
    widths_.push_back(width);
    made_.emplace_back();
    return id;
  }

  void AddCast(TensorId from, TensorId to, const Op& near) {
    const int64_t elements = ElementsOf(from);
    Op op = NewOp(to_.tensor(to).name + ".to", "aten::_to_copy", near,
                  work_.TimeOf(Bytes(6 * elements)));  // it reads and writes 2 and 4 bytes
    op.phase = near.phase;
    op.inputs = {from};
    op.outputs = {to};
    to_.ops.push_back(std::move(op));
  }

  // ---- forward ----

  // Returns the width in which autocast runs the operator; nullopt: in that of its operands.
  std::optional<Width> WidthUnderAutocast(const Op& op) const {
    if (IsCostly(op) || IsIn(kInBfloat16, op)) {
      const bool in_autocast = !from_.training || has_backward_[Index(op.layer)];
      return in_autocast ? Width::kBfloat16 : Width::kFloat32;
    }
    if (IsIn(kInFloat32, op) || IsUpsampling(op)) return Width::kFloat32;
    return std::nullopt;
  }

  // Returns true iff the step updates the parameter; if it updates none, all count. Autocast casts
  // others anew at each use.
  bool IsTrained(TensorId parameter) const {
    const auto is_update = [&](OpId op) { return from_.op(op).phase == Phase::kUpdate; };
    return from_.ops.back().phase != Phase::kUpdate ||
           std::ranges::any_of(liveness_.Writers(parameter), is_update);
  }

  void Forward(Op op) {
    const std::optional<Width> wanted = WidthUnderAutocast(op);
    const Op recorded = op;
    auto& casts = casts_[Index(op.layer)];
    for (TensorId& input : op.inputs) {
      if (!wanted || !IsFloat(input) || WidthOf(input) == *wanted) continue;
      const bool is_weight = KindOf(input) == TensorKind::kParameter && IsTrained(Root(input));
      auto& known = is_weight ? weights_ : casts;
      auto [found, is_new] = known.try_emplace(input);
      if (is_new) {
        found->second = AddTensor(input, *wanted, op.phase);
        AddCast(input, found->second, op);
        if (is_weight) cached_.emplace_back(found->second, to_.ops.size());
      }
      casts[input] = found->second;
      input = found->second;
    }
    Width width = wanted.value_or(Widest(op.inputs));
    if (IsSum(op)) width = Width::kFloat32;
    if (IsBatchNorm(op)) width = WidthOf(op.inputs[0]);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const bool is_statistic = i > 0 && (IsBatchNorm(op) || op.type == OpType::kAttention);
      if (!is_statistic) SetWidth(op.outputs[i], width);
    }
    Write(recorded, std::move(op), false);
  }

  // Sets the width of a storage that is written for the first time.
  void SetWidth(TensorId id, Width width) {
    const TensorKind kind = KindOf(id);
    const bool is_new = !MakerOf(id) && kind != TensorKind::kParameter &&
                        kind != TensorKind::kOptimizerState && kind != TensorKind::kInput;
    if (is_new && IsFloat(id)) widths_[Index(Root(id))] = width;
  }

  // Adds the op. `recorded` is the op of the recording.
  void Write(const Op& recorded, Op op, bool backward) {
    int64_t bytes = 0, halved = 0;
    const auto count = [&](const std::vector<TensorId>& before, std::span<const TensorId> after) {
      for (size_t i = 0; i < before.size(); ++i) {
        const Tensor& tensor = from_.tensor(before[i]);
        bytes += tensor.size.count();
        if (WidthOf(after[i]) == Width::kBfloat16) halved += tensor.size.count();
      }
    };
    count(recorded.inputs, op.inputs);
    count(recorded.outputs, op.outputs);
    work_.Lower(bytes, halved, op);
    for (const TensorId id : op.outputs) {
      if (!MakerOf(id)) {
        made_[Index(Root(id))] = Maker{backward, op.layer};
      } else {  // in place, as autograd adds gradients: casts of the former value are not of this
                // one
        std::erase_if(converted_, [&](const auto& cast) { return Root(cast.first) == Root(id); });
      }
    }
    to_.ops.push_back(std::move(op));
  }

  // ---- backward ----

  // Returns true iff the op adds gradients from different nodes: autograd does, and the formulas of
  // derivatives do not.
  bool Accumulates(const Op& op) const {
    return IsAddition(op) && std::ranges::any_of(op.inputs, [&](TensorId id) {
             return IsGradient(id) && MakerOf(id)->layer != op.layer;
           });
  }

  // Returns the first of `ids` in fp32 in the recording that has as many elements as `like`.
  std::optional<TensorId> Match(std::span<const TensorId> ids, TensorId like) const {
    const auto found = std::ranges::find_if(ids, [&](TensorId id) {
      return from_.tensor(id).dtype == DataType::kFloat32 && ElementsOf(id) == ElementsOf(like);
    });
    return found == ids.end() ? std::nullopt : std::optional(*found);
  }

  void Backward(size_t index) {
    const Op& recorded = from_.ops[index];
    Op op = recorded;
    const Op& forward = from_.ops[*forward_[Index(op.layer)]];
    const bool accumulates = Accumulates(op);
    if (accumulates || layer_ != op.layer) EndLayer();
    if (layer_ != op.layer) read_.clear();
    layer_ = op.layer;
    const auto& casts = casts_[Index(op.layer)];
    for (TensorId& input : op.inputs) {
      const auto cast = casts.find(input);
      if (cast != casts.end() && !IsGradient(input)) {
        input = cast->second;  // autograd saved the copy
        read_.insert(input);
      } else if (IsGradient(input) && IsFloat(input) &&
                 (accumulates || MakerOf(input)->layer != op.layer)) {
        const auto of = Match(accumulates ? forward.inputs : forward.outputs, input);
        if (of) input = AsGradientOf(*of, input, op);
      }
    }
    Width width = Widest(op.inputs);
    if (op.type == OpType::kAttention) width = WidthOf(forward.outputs[0]);
    if (IsBatchNorm(op)) width = WidthOf(forward.inputs[0]);
    std::vector<TensorId> unclaimed = forward.inputs;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      TensorId& output = op.outputs[i];
      if (MakerOf(output) || !IsFloat(output)) continue;
      SetWidth(output, IsBatchNorm(op) && i > 0 ? Width::kFloat32 : width);
      const auto of = accumulates ? std::nullopt : Match(unclaimed, output);
      if (!of) continue;
      std::erase(unclaimed, *of);
      if (!casts.contains(*of) || WidthOf(*of) == WidthOf(output) || IsReadInLayer(index, output)) {
        continue;
      }
      const TensorId computed = AddTensor(output, WidthOf(output), op.phase);
      widths_[Index(Root(output))] = WidthOf(*of);
      made_[Index(Root(output))] = Maker{true, op.layer};
      waiting_.push_back({computed, output});
      output = computed;
    }
    if (!accumulates) {
      for (const TensorId copy : read_) saved_until_[copy] = static_cast<OpId>(to_.ops.size());
    }
    Write(recorded, std::move(op), true);
  }

  // Returns the gradient in the type of the tensor that it belongs to.
  TensorId AsGradientOf(TensorId of, TensorId gradient, const Op& near) {
    const Width width = WidthOf(of);
    if (width == WidthOf(gradient)) return gradient;
    auto [found, is_new] = converted_.try_emplace(gradient);
    if (is_new) {
      found->second = AddTensor(gradient, width, near.phase);
      made_[Index(found->second)] = MakerOf(gradient);
      AddCast(gradient, found->second, near);
    }
    return found->second;
  }

  // Returns true iff a later op of the same derivative reads what the op writes.
  bool IsReadInLayer(size_t index, TensorId output) const {
    const LayerId layer = from_.ops[index].layer;
    for (size_t i = index + 1; i < from_.ops.size() && from_.ops[i].layer == layer; ++i) {
      if (IsAddition(from_.ops[i])) return false;
      for (const TensorId input : from_.ops[i].inputs) {
        if (Root(input) == Root(output)) return true;
      }
    }
    return false;
  }

  // Adds the casts of the gradients of a layer.
  void EndLayer() {
    for (const Waiting& waiting : std::exchange(waiting_, {})) {
      AddCast(waiting.computed, waiting.gradient, to_.ops.back());
    }
  }

  // ---- lifetimes ----

  // Says how long the program holds storages beyond their last use: the copies that autograd saved
  // until their derivative is computed, and the copies of weights until autocast ends with forward.
  // Autograd does not hold what was cast any longer.
  void Hold() {
    MoveWaits(places_, to_);
    const Liveness now(to_);
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      std::optional<OpId>& held = to_.tensors[i].held_until;
      if (!held) continue;
      const auto before = liveness_.LastUse(ThisId(i)), after = now.LastUse(ThisId(i));
      const OpId recorded = *held, same = places_[Index(recorded)];
      const bool by_autograd = before && from_.op(*before).phase == Phase::kBackward &&
                               (Index(recorded) <= Index(*before) + 1 ||
                                from_.op(recorded).layer == from_.op(*before).layer);
      const bool cast = before && after && *after < places_[Index(*before)];
      held = by_autograd && cast ? *after : after ? std::max(same, *after) : same;
    }
    for (const auto& [copy, until] : saved_until_) to_.tensors[Index(copy)].held_until = until;
    const auto is_backward = [](const Op& op) { return op.phase == Phase::kBackward; };
    for (const auto& [id, place] : cached_) {
      const auto end = std::find_if(to_.ops.begin() + static_cast<std::ptrdiff_t>(place),
                                    to_.ops.end(), is_backward);
      const auto last = static_cast<OpId>(end - to_.ops.begin() - 1);
      std::optional<OpId>& held = to_.tensors[Index(id)].held_until;
      held = std::max({last, *now.LastUse(id), held.value_or(last)});
    }
  }

  void Shrink() {
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      if (IsFloat(ThisId(i)) && widths_[Index(Root(ThisId(i)))] == Width::kBfloat16) {
        shrunk_.push_back(ThisId(i));
      }
    }
    for (const TensorId id : shrunk_) Halve(to_.tensors[Index(id)]);
  }

  const Trace& from_;
  const HalvedWork work_;
  const Liveness liveness_;
  Trace to_;
  // By tensor, new ones included.
  std::vector<TensorId> roots_;
  std::vector<Width> widths_;               // the width of a storage
  std::vector<std::optional<Maker>> made_;  // the maker of a storage that an op has written
  // By layer.
  std::vector<std::optional<size_t>> forward_;       // its op of forward
  std::vector<std::map<TensorId, TensorId>> casts_;  // the copies that this op reads
  std::vector<bool> has_backward_;
  std::map<TensorId, TensorId> weights_;             // copies of weights
  std::vector<std::pair<TensorId, size_t>> cached_;  // the same, and the ops before
  std::map<TensorId, OpId> saved_until_;    // by copy: the last op of the derivative that reads it
  std::map<TensorId, TensorId> converted_;  // gradients in the type of what they belong to
  std::vector<Waiting> waiting_;            // gradients of `layer_`
  LayerId layer_{};
  std::set<TensorId> read_;   // copies that the derivative of `layer_` has read
  std::vector<OpId> places_;  // by op of the recording
  std::vector<TensorId> shrunk_;
};

}  // namespace

std::optional<Trace> UnderAutocast(const Trace& trace, const Device& device, const CostModel& cost,
                                   std::string& why_not) {
  if (trace.saved.empty() || !IsInFp32(trace)) return std::nullopt;
  if (HasUnfusedAttention(trace)) {
    why_not =
        "Autocast was not tried: attention runs in several operators in fp32, and in one under "
        "autocast; record the step under it.";
    return std::nullopt;
  }
  return Autocast(trace, device, cost).Build();
}

}  // namespace spillway::lab
