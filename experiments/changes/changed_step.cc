#include "experiments/changes/changed_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "experiments/changes/shards.h"
#include "traces/liveness.h"

namespace spillway::lab {
namespace {

// Writes the step that computes a batch in several passes.
class Passes {
 public:
  // `update` is the number of ops before the update.
  Passes(const Trace& whole, const Trace& part, const Device& device, size_t update)
      : whole_(whole),
        part_(part),
        device_(device),
        update_(update),
        liveness_(part),
        to_(part),
        copies_(part.tensors.size()),
        ready_(update),
        places_(part.ops.size()),
        names_(part) {}

  Trace Build(int64_t passes) {
    FindGradients();
    to_.ops.resize(update_);  // the first pass
    for (int64_t pass = 1; pass < passes; ++pass) {
      if (pass > 1) EndPass();
      for (size_t i = 0; i < update_; ++i) Add(i);
    }
    for (size_t i = update_; i < part_.ops.size(); ++i) Add(i);
    Hold();
    for (size_t i = 0; i < part_.tensors.size(); ++i) {
      if (part_.tensors[i].kind != TensorKind::kInput || part_.tensors[i].alias_of) continue;
      to_.tensors[i].shape = whole_.tensors[i].shape;
      to_.tensors[i].size = whole_.tensors[i].size;
    }
    to_.name = whole_.name;
    to_.batch = whole_.batch;
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  TensorKind KindOf(TensorId id) const { return part_.tensor(liveness_.Root(id)).kind; }
  bool IsGradient(TensorId id) const { return KindOf(id) == TensorKind::kParameterGradient; }

  // Returns true iff each pass has its own storage for the tensor.
  bool IsOfPass(TensorId id) const {
    const auto first = liveness_.FirstUse(liveness_.Root(id));
    return !IsPersistent(KindOf(id)) && KindOf(id) != TensorKind::kInput && first &&
           Index(*first) < update_;
  }

  // Finds after which op each gradient of a parameter is complete.
  void FindGradients() {
    for (size_t i = 0; i < part_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (liveness_.Root(id) != id || !IsGradient(id) || !IsOfPass(id)) continue;
      OpId last{};
      for (const OpId use : liveness_.Uses(id)) {
        if (Index(use) < update_) last = use;
      }
      ready_[Index(last)].push_back(id);
    }
  }

  std::string NewName(const std::string& name) { return names_.Of(name + ".again"); }

  // Adds an op of a later pass, or of the update.
  void Add(size_t i) {
    Op op = part_.ops[i];
    if (i < update_) op.name = NewName(op.name);
    for (auto* operands : {&op.inputs, &op.outputs, &op.scratch}) {
      for (TensorId& id : *operands) id = i < update_ || !IsGradient(id) ? Later(id) : id;
    }
    for (OpId& other : op.after) other = places_[Index(other)];
    to_.ops.push_back(std::move(op));
    if (i < update_) Accumulate(i);
    places_[i] = static_cast<OpId>(to_.ops.size() - 1);
  }

  // Ends a pass that another one follows, which has tensors of its own.
  void EndPass() {
    for (size_t i = 0; i < copies_.size(); ++i) {
      if (!copies_[i]) continue;
      std::optional<OpId>& held = to_.tensors[Index(*copies_[i])].held_until;
      if (IsGradient(static_cast<TensorId>(i))) held.reset();
      if (held) held = places_[std::min(Index(*held), update_ - 1)];
      copies_[i].reset();
    }
  }

  // Returns the tensor of the pass that is being added.
  TensorId Later(TensorId id) {
    if (!IsOfPass(id)) return id;
    if (!copies_[Index(id)]) {
      Tensor copy = part_.tensor(id);
      copy.name = NewName(copy.name);
      copy.request.reset();
      if (IsGradient(id)) copy.kind = TensorKind::kGradient;
      if (copy.alias_of) copy.alias_of = Later(*copy.alias_of);
      copies_[Index(id)] = static_cast<TensorId>(to_.tensors.size());
      to_.tensors.push_back(std::move(copy));
    }
    return *copies_[Index(id)];
  }

  // Adds the gradients that are complete after the op to those of the first pass.
  void Accumulate(size_t op) {
    for (const TensorId id : ready_[op]) {
      const Tensor& gradient = part_.tensor(id);
      Op add = NewOp(NewName(gradient.name + ".add_"), "aten::add_", part_.ops[op],
                     TransferTime(3 * gradient.size, device_.dram));
      add.inputs = {id, *copies_[Index(id)]};
      add.outputs = {id};
      to_.ops.push_back(std::move(add));
    }
  }

  // Says how long the program holds tensors beyond their last use.
  void Hold() {
    for (size_t i = 0; i < part_.tensors.size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      std::optional<OpId>& held = to_.tensors[i].held_until;
      if (!held) continue;
      const OpId later = places_[Index(*held)];
      if (copies_[i]) {
        to_.tensors[Index(*copies_[i])].held_until =
            IsGradient(id) ? std::nullopt : std::optional(later);
      }
      if (IsOfPass(id) && !IsGradient(id)) {
        held = std::min(*held, static_cast<OpId>(update_ - 1));
      } else if (liveness_.FirstUse(id) || Index(*held) >= update_) {
        held = later;
      }
    }
  }

  const Trace& whole_;
  const Trace& part_;
  const Device& device_;
  const size_t update_;
  const Liveness liveness_;
  Trace to_;
  std::vector<std::optional<TensorId>> copies_;  // the tensors of the latest pass
  std::vector<std::vector<TensorId>> ready_;     // gradients of parameters, by the op before
  std::vector<OpId> places_;                     // the new ops of the latest pass or the update
  NewNames names_;
};

// Writes the step in bf16, whose loss is computed in fp32.
class Halved {
 public:
  Halved(const Trace& trace, const Device& device, const CostModel& cost)
      : from_(trace),
        work_(device, cost),
        liveness_(trace),
        to_(trace),
        halves_(trace.tensors.size()),
        casts_(trace.tensors.size()) {}

  Trace Build() {
    for (size_t i = 0; i < halves_.size(); ++i) halves_[i] = IsFp32(from_.tensors[i]);
    for (const Op& op : from_.ops) {
      if (!IsLoss(op)) continue;
      for (const TensorId id : op.outputs) halves_[Index(liveness_.Root(id))] = false;
    }
    for (size_t i = 0; i < halves_.size(); ++i) {
      if (IsHalved(static_cast<TensorId>(i))) Halve(to_.tensors[i]);
    }
    to_.ops.clear();
    std::vector<OpId> places;
    for (const Op& op : from_.ops) {
      Write(op);
      places.push_back(static_cast<OpId>(to_.ops.size() - 1));
    }
    for (Tensor& tensor : to_.tensors) {
      if (tensor.held_until) tensor.held_until = places[Index(*tensor.held_until)];
    }
    for (size_t i = 0; i < casts_.size(); ++i) {
      if (casts_[i] && !halves_[i]) to_.tensors[i].held_until.reset();  // the cast frees it
    }
    MoveWaits(places, to_);
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  static bool IsLoss(const Op& op) {
    constexpr std::string_view kLoss[] = {"aten::_log_softmax",      kLossGradient,
                                          "aten::nll_loss_forward",  "aten::nll_loss2d_forward",
                                          "aten::nll_loss_backward", "aten::nll_loss2d_backward"};
    return std::ranges::find(kLoss, OperatorOf(op)) != std::end(kLoss);
  }

  bool IsHalved(TensorId id) const { return halves_[Index(liveness_.Root(id))]; }

  // Adds an op that writes the tensor in the other type, unless there is one, and returns what it
  // writes.
  TensorId Cast(TensorId id, const Op& near) {
    std::optional<TensorId>& cast = casts_[Index(id)];
    if (cast) return *cast;
    Tensor tensor = from_.tensor(id);
    tensor.name += IsHalved(id) ? ".float32" : ".bfloat16";
    tensor.alias_of.reset();
    tensor.offset = Bytes();
    tensor.request.reset();
    tensor.kind = near.phase == Phase::kForward ? TensorKind::kActivation : TensorKind::kGradient;
    if (IsHalved(id)) {
      tensor.held_until.reset();
    } else {
      Halve(tensor);
    }
    Op op =
        NewOp(tensor.name, "aten::_to_copy", near, work_.TimeOf(tensor.size + to_.tensor(id).size));
    cast = static_cast<TensorId>(to_.tensors.size());
    op.inputs = {id};
    op.outputs = {*cast};
    to_.tensors.push_back(std::move(tensor));
    to_.ops.push_back(std::move(op));
    return *cast;
  }

  // Writes the op, with casts before and behind the loss.
  void Write(Op op) {
    int64_t bytes = 0, halved = 0;
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) {
        bytes += from_.tensor(id).size.count();
        if (IsHalved(id)) halved += from_.tensor(id).size.count();
      }
    }
    const bool is_loss = IsLoss(op);
    for (auto* operands : {&op.inputs, &op.outputs}) {
      for (TensorId& id : *operands) {
        if (is_loss ? IsHalved(id) : of_loss_.contains(liveness_.Root(id))) id = Cast(id, op);
      }
    }
    if (OperatorOf(op) == kLossGradient) {
      for (const TensorId id : op.outputs) of_loss_.insert(id);
    }
    if (!is_loss) work_.Lower(bytes, halved, op);
    to_.ops.push_back(std::move(op));
  }

  static constexpr std::string_view kLossGradient = "aten::_log_softmax_backward_data";

  const Trace& from_;
  const HalvedWork work_;
  const Liveness liveness_;
  Trace to_;
  std::vector<bool> halves_;                    // by storage
  std::vector<std::optional<TensorId>> casts_;  // by tensor
  std::set<TensorId> of_loss_;  // gradients by the loss in fp32, which are cast where they are read
};

}  // namespace

std::optional<Trace> InMicroBatches(const Trace& whole, const Trace& part, const Device& device,
                                    int64_t passes) {
  const auto is_update = [](const Op& op) { return op.phase == Phase::kUpdate; };
  const auto update = std::ranges::find_if(part.ops, is_update);
  if (update == part.ops.begin() || !std::all_of(update, part.ops.end(), is_update)) {
    return std::nullopt;
  }
  return Passes(whole, part, device, static_cast<size_t>(update - part.ops.begin())).Build(passes);
}

std::optional<Trace> InBfloat16(const Trace& trace, const Device& device, const CostModel& cost) {
  if (!IsInFp32(trace)) return std::nullopt;
  return Halved(trace, device, cost).Build();
}

std::optional<Trace> BuiltElsewhere(const Trace& trace) {
  std::vector<bool> stays(trace.recording->requests.size());
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.request) stays[*tensor.request] = true;
  }
  Trace built = trace;
  bool any = false;
  for (size_t i = 0; i < stays.size(); ++i) {
    SetupRequest& request = built.recording->requests[i];
    if (stays[i] || !request.freed || request.size == Bytes()) continue;
    request.size = Bytes();
    any = true;
  }
  return any ? std::optional(std::move(built)) : std::nullopt;
}

std::shared_ptr<const Trace> WithoutEarlierSteps(std::shared_ptr<const Trace> trace) {
  if (!trace->recording || WorldOf(*trace) == 1) return trace;
  size_t first = 0;  // the first request of these steps
  for (const Tensor& tensor : trace->tensors) {
    if (tensor.kind == TensorKind::kParameter && tensor.request) {
      first = std::max<size_t>(first, *tensor.request + 1);
    }
  }
  auto made = std::make_shared<Trace>(*trace);
  std::vector<SetupRequest>& requests = made->recording->requests;
  for (size_t i = first; i < requests.size(); ++i) {
    if (requests[i].freed) requests[i].size = Bytes();
  }
  for (Tensor& tensor : made->tensors) {
    const bool is_state = tensor.kind == TensorKind::kOptimizerState && tensor.request;
    if (!is_state || *tensor.request < first) continue;
    requests[*tensor.request].size = Bytes();
    tensor.request.reset();
  }
  return made;
}

}  // namespace spillway::lab
