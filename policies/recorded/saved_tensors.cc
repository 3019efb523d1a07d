#include "policies/recorded/saved_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/liveness.h"

namespace spillway::policies {
namespace {

constexpr std::string_view kFormat = "spillway-saved-tensors";
constexpr int64_t kVersion = 1;
// PyTorch waits for a copy to the host. Then the GPU has nothing to do for this long, until the
// host has launched the next op. On four networks and two GPUs it took 60 to 100 us; with this
// value, all steps are predicted within 5 % (experiments/evidence/pytorch/README.md).
constexpr Duration kBlockingCopy = Duration::Microseconds(70);

// Returns the signature of the slot of an op that copies.
std::string CopySignature(Direction direction) {
  return direction == Direction::kToHost ? "copy to_host" : "copy to_device";
}

bool IsPersistent(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kOptimizerState ||
         tensor.kind == TensorKind::kInput;
}

// Writes the new trace op by op. Tensors keep their ids, and new tensors follow them.
class Rewriter {
 public:
  Rewriter(const Trace& trace, const SavedTensorsPlan& plan, const CostModel& cost)
      : from_(trace),
        plan_(plan),
        cost_(cost),
        liveness_(trace),
        to_(trace),
        came_back_(trace.tensors.size()) {
    for (const Tensor& tensor : trace.tensors) tensor_names_.insert(tensor.name);
    for (const Op& op : trace.ops) op_names_.insert(op.name);
  }

  Trace Rewrite() {
    FindReaders();
    to_.ops.clear();
    to_.saved.clear();
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      new_place_.push_back(static_cast<OpId>(to_.ops.size()));
      if (from_.ops[i].phase == Phase::kForward) {
        to_.ops.push_back(from_.ops[i]);
        CopyOut(static_cast<OpId>(i));
      } else {
        Op op = from_.ops[i];
        for (TensorId& input : op.inputs) {
          if (IsReader(static_cast<OpId>(i), input)) input = ComesBack(input, op);
        }
        new_place_.back() = static_cast<OpId>(to_.ops.size());
        to_.ops.push_back(std::move(op));
      }
    }
    Hold();
    return std::move(to_);
  }

 private:
  // Returns the entry of the list for the tensor, or for its storage if the tensor is not listed.
  const SavedTensor& Planned(TensorId id) const {
    const SavedTensor& own = plan_.tensors[Index(id)];
    return own.fate ? own : plan_.tensors[Index(liveness_.Root(id))];
  }
  std::optional<SavedFate> FateOf(TensorId id) const { return Planned(id).fate; }

  // Returns true if the op is a backward op that reads a tensor which has to come back, and no
  // backward op writes the tensor's storage.
  bool IsReader(OpId op, TensorId input) const {
    const auto fate = FateOf(input);
    return fate && *fate != SavedFate::kSave && from_.op(op).phase == Phase::kBackward &&
           !written_later_[Index(liveness_.Root(input))];
  }

  void FindReaders() {
    readers_.resize(from_.tensors.size());
    written_later_.resize(from_.tensors.size());
    leaving_.resize(from_.ops.size());
    std::vector<OpId> last_forward(from_.tensors.size());
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      const Op& op = from_.ops[i];
      const auto id = static_cast<OpId>(i);
      if (op.phase == Phase::kForward) {
        for (const TensorId storage : liveness_.Storages(id)) last_forward[Index(storage)] = id;
      } else if (op.phase == Phase::kBackward) {
        for (const TensorId output : op.outputs)
          written_later_[Index(liveness_.Root(output))] = true;
      }
    }
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      const std::set<TensorId> inputs(from_.ops[i].inputs.begin(), from_.ops[i].inputs.end());
      for (const TensorId input : inputs) {
        if (!IsReader(static_cast<OpId>(i), input) || readers_[Index(input)]++ > 0) continue;
        if (FateOf(input) != SavedFate::kOffload) continue;
        leaving_[Index(last_forward[Index(liveness_.Root(input))])].push_back(input);
      }
    }
  }

  // Adds the copies of the tensors that this op is the last in forward to use.
  void CopyOut(OpId op) {
    for (const TensorId id : leaving_[Index(op)]) {
      for (int64_t copy = 0; copy < (plan_.each_reader ? readers_[Index(id)] : 1); ++copy) {
        AddCopy(id, Direction::kToHost, from_.op(op).layer, Phase::kForward).inputs = {id};
      }
    }
  }

  Op& AddCopy(TensorId id, Direction direction, LayerId layer, Phase phase) {
    const Tensor& tensor = from_.tensor(id);
    const bool out = direction == Direction::kToHost;
    Op op;
    op.name = NewName(fmt::format("{}.{}", tensor.name, out ? "to_host" : "to_device"), op_names_);
    op.layer = layer;
    op.phase = phase;
    op.batch = from_.batch;
    // Without traffic, a copy takes the same time whatever GPU the trace was recorded on.
    op.slots = {{"op", CopySignature(direction), 0, Bytes(0)}};
    op.recorded = {cost_.CopyTime(direction, tensor.size), out ? kBlockingCopy : Duration(),
                   Duration(), Bytes(0)};
    return to_.ops.emplace_back(std::move(op));
  }

  // Returns `wanted`, with a number behind it if the name exists already.
  static std::string NewName(const std::string& wanted, std::set<std::string>& names) {
    std::string name = wanted;
    for (int number = 1; !names.insert(name).second; ++number) {
      name = fmt::format("{}.{}", wanted, number);
    }
    return name;
  }

  // Returns the tensor that a backward op reads instead of `id`, and adds the ops that bring it
  // back.
  TensorId ComesBack(TensorId id, const Op& reader) {
    if (FateOf(id) == SavedFate::kOffload) {
      std::optional<TensorId>& back = came_back_[Index(id)];
      if (back && !plan_.each_reader) return *back;
      back = AddTensor(id);
      AddCopy(id, Direction::kToDevice, reader.layer, reader.phase).outputs = {*back};
      return *back;
    }
    if (!came_back_[Index(id)]) Recompute(id);
    return *came_back_[Index(id)];
  }

  // Adds a tensor for the contents of another one.
  TensorId AddTensor(TensorId of) {
    Tensor tensor = from_.tensor(of);
    tensor.name = NewName(tensor.name + ".again", tensor_names_);
    tensor.kind = TensorKind::kActivation;
    tensor.alias_of.reset();
    tensor.offset = Bytes(0);
    tensor.held_until.reset();
    tensor.request.reset();
    to_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(to_.tensors.size() - 1);
  }

  // Adds the ops that make the tensor again, and the tensors of its group.
  void Recompute(TensorId id) {
    std::set<OpId> again;
    std::vector<TensorId> open{id};
    if (const std::string& group = Planned(id).group; !group.empty()) {
      for (size_t i = 0; i < from_.tensors.size(); ++i) {
        const auto other = static_cast<TensorId>(i);
        if (readers_[i] > 0 && !came_back_[i] && Planned(other).group == group) {
          open.push_back(other);
        }
      }
    }
    const std::vector<TensorId> come_back = open;
    while (!open.empty()) {
      const TensorId wanted = open.back();
      open.pop_back();
      for (const OpId writer : liveness_.Writers(liveness_.Root(wanted))) {
        if (from_.op(writer).phase != Phase::kForward || !again.insert(writer).second) continue;
        if (!MakesAgain(writer)) {
          throw InputError(
              fmt::format("tensor '{}' cannot be recomputed: op '{}' does not "
                          "give the same again",
                          from_.tensor(id).name, from_.op(writer).name));
        }
        for (const TensorId input : from_.op(writer).inputs) {
          if (IsGone(input)) open.push_back(input);
        }
      }
    }
    std::map<TensorId, TensorId> made;  // the new tensor, by the tensor that it replaces
    for (const OpId old : again) {
      Op op = from_.op(old);
      op.name = NewName(op.name + ".again", op_names_);
      op.phase = Phase::kBackward;
      op.recomputable = false;
      for (TensorId& input : op.inputs) input = Available(input, made);
      for (TensorId& output : op.outputs) output = Made(output, made);
      to_.ops.push_back(std::move(op));
    }
    for (const TensorId wanted : come_back) {
      if (!made.contains(liveness_.Root(wanted))) {
        throw InputError(fmt::format("tensor '{}' cannot be recomputed: no op of forward makes it",
                                     from_.tensor(wanted).name));
      }
      Made(wanted, made);  // it may be a view that no op has written
    }
    for (const auto& [old, now] : made) came_back_[Index(old)] = now;
    back_at_[Planned(id).group] = static_cast<OpId>(to_.ops.size() - 1);
  }

  // Returns true if the op gives the same result when it runs again. An op that works in place
  // does, because all of its storage is made anew. An op that writes a parameter, optimizer state
  // or an input does not.
  bool MakesAgain(OpId op) const {
    const auto lasts = [&](TensorId output) {
      return IsPersistent(from_.tensor(liveness_.Root(output)));
    };
    return std::ranges::none_of(from_.op(op).outputs, lasts);
  }

  // Returns true if nothing holds the tensor any longer when backward begins.
  bool IsGone(TensorId id) const {
    const TensorId root = liveness_.Root(id);
    if (IsPersistent(from_.tensor(root)) || came_back_[Index(id)]) return false;
    const auto fate = FateOf(id);
    if (fate) return *fate == SavedFate::kRecompute;
    const auto last = liveness_.LastUse(root);
    return last && from_.op(*last).phase == Phase::kForward;
  }

  TensorId Available(TensorId id, std::map<TensorId, TensorId>& made) {
    if (const auto found = made.find(id); found != made.end()) return found->second;
    if (came_back_[Index(id)]) return *came_back_[Index(id)];
    const TensorId root = liveness_.Root(id);
    return made.contains(root) ? Made(id, made) : id;
  }

  // Returns the tensor that an op writes instead of `id` when it runs again: a new storage, or a
  // view of the new storage.
  TensorId Made(TensorId id, std::map<TensorId, TensorId>& made) {
    if (const auto found = made.find(id); found != made.end()) return found->second;
    const TensorId root = liveness_.Root(id);
    const auto storage = made.try_emplace(root, TensorId{});
    if (storage.second) storage.first->second = AddTensor(root);
    if (id == root) return storage.first->second;
    const TensorId view = AddTensor(id);
    to_.tensors[Index(view)].alias_of = storage.first->second;
    to_.tensors[Index(view)].offset = liveness_.Offset(id);
    made.emplace(id, view);
    return view;
  }

  // Sets how long the program holds each tensor. Autograd no longer holds a tensor that comes back.
  // A tensor that the program held longer is still held.
  void Hold() {
    MoveWaits(new_place_, to_);
    const Liveness now(to_);
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      Tensor& tensor = to_.tensors[i];
      if (!tensor.held_until) continue;
      const auto id = static_cast<TensorId>(i);
      const auto before = liveness_.LastUse(id);
      const auto after = now.LastUse(id);
      const OpId held = *tensor.held_until;
      // True if it was held until the autograd node that read it last was done; a node may have
      // several ops.
      const bool by_autograd =
          before && from_.op(*before).phase == Phase::kBackward &&
          (Index(held) <= Index(*before) + 1 || from_.op(held).layer == from_.op(*before).layer);
      const OpId same = new_place_[Index(held)];
      const bool released = by_autograd && after && *after < same;
      tensor.held_until = released ? *after : after ? std::max(same, *after) : same;
    }
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      const SavedTensor& planned = plan_.tensors[i];
      const auto last = now.LastUse(static_cast<TensorId>(i));
      if (planned.fate != SavedFate::kSave || planned.group.empty() || !last) continue;
      if (const auto back = back_at_.find(planned.group); back != back_at_.end()) {
        auto& held = to_.tensors[i].held_until;
        held = std::max({held.value_or(*last), *last, back->second});
      }
    }
  }

  const Trace& from_;
  const SavedTensorsPlan& plan_;
  const CostModel& cost_;
  const Liveness liveness_;
  Trace to_;
  std::vector<int64_t> readers_;                    // by tensor: the backward ops that read it
  std::vector<bool> written_later_;                 // by storage: backward writes it
  std::vector<std::vector<TensorId>> leaving_;      // by op: tensors that are copied out after it
  std::vector<OpId> new_place_;                     // by op of the given trace
  std::vector<std::optional<TensorId>> came_back_;  // by tensor: the tensor that replaces it
  std::map<std::string, OpId> back_at_;  // by group: the op after which all of it is back
  std::set<std::string> tensor_names_, op_names_;
};

}  // namespace

SavedTensorsPlan ParseSavedTensors(std::string_view text, const std::string& origin,
                                   const Trace& trace) {
  JsonDocument document(text, origin);
  document.ReadHeader(kFormat, kVersion);
  std::map<std::string_view, size_t> ids;
  for (size_t i = 0; i < trace.tensors.size(); ++i) ids.emplace(trace.tensors[i].name, i);
  SavedTensorsPlan plan;
  plan.tensors.resize(trace.tensors.size());
  using Value = JsonDocument::Value;
  const auto find = [&](std::string_view name) {
    const auto found = ids.find(name);
    if (found != ids.end()) return found->second;
    std::vector<std::string> names;
    for (const Tensor& tensor : trace.tensors) names.push_back(tensor.name);
    const std::string message = UnknownName("tensor", name, names);
    document.Fail(message.substr(0, message.find(" (valid: ")));  // there are thousands
  };
  const auto read_tensor = [&](Value value) {
    std::optional<size_t> id;
    SavedTensor tensor;
    document.ReadObject(
        value,
        Required("tensor",
                 [&](Value name) {
                   id = find(document.ReadString(name));
                   if (plan.tensors[*id].fate) document.Fail("the tensor is listed twice");
                 }),
        Required("fate",
                 [&](Value fate) {
                   const std::string_view name = document.ReadString(fate);
                   if (name == "save") tensor.fate = SavedFate::kSave;
                   if (name == "recompute") tensor.fate = SavedFate::kRecompute;
                   if (name == "offload") tensor.fate = SavedFate::kOffload;
                   if (!tensor.fate) {
                     document.Fail("expected \"save\", \"recompute\" or \"offload\"");
                   }
                 }),
        Optional("group", [&](Value name) { tensor.group = document.ReadString(name); }));
    if (!tensor.group.empty() && tensor.fate != SavedFate::kRecompute) {
      document.Fail("only a tensor that is recomputed has a \"group\"");
    }
    plan.tensors[*id] = std::move(tensor);
  };
  document.ReadRoot(
      Required("format", SkipJson), Required("version", SkipJson),
      Required("workload",
               [&](Value value) {
                 const std::string_view workload = document.ReadString(value);
                 if (workload != trace.name) {
                   document.Fail(
                       fmt::format("the list is for {}, and this is {}", workload, trace.name));
                 }
               }),
      Optional("source", [&](Value value) { document.ReadString(value); }),
      Optional("copies",
               [&](Value value) {
                 const std::string_view copies = document.ReadString(value);
                 if (copies != "one" && copies != "each_reader") {
                   document.Fail("expected \"one\" or \"each_reader\"");
                 }
                 plan.each_reader = copies == "each_reader";
               }),
      Required("tensors", [&](Value value) { document.ReadArray(value, read_tensor); }));
  return plan;
}

Trace ApplySavedTensors(const Trace& trace, const SavedTensorsPlan& plan, const CostModel& cost) {
  return Rewriter(trace, plan, cost).Rewrite();
}

Bytes CopiedByOps(const Trace& trace, Direction direction) {
  const std::string signature = CopySignature(direction);
  Bytes copied;
  for (const Op& op : trace.ops) {
    if (op.slots.size() != 1 || op.slots[0].signature != signature) continue;
    // `HeldAsRecorded` lists the tensors that are held behind the operand.
    const std::vector<TensorId>& operands =
        direction == Direction::kToHost ? op.inputs : op.outputs;
    if (!operands.empty()) copied += trace.tensor(operands.front()).size;
  }
  return copied;
}

}  // namespace spillway::policies
