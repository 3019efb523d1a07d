#include "experiments/changes/other_sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "experiments/changes/changed_op.h"
#include "experiments/changes/shards.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// To gather the parameters of a module takes the host as long in backward as so many operators, and
// so many more for each parameter (FSDP_WORK in backend/torch/spillway_torch/base/table.py).
constexpr double kHostOfModule = 27, kHostOfParameter = 3;
// FSDP2 puts gradients side by side with it.
constexpr std::string_view kCopyIn = "fsdp::chunk_cat";

// Returns the module of a layer of a recording: "h.0.attn" for "h.0/attn.mm.11".
std::string ModuleOf(std::string_view layer) {
  layer = layer.substr(0, layer.rfind('.'));
  const size_t end = layer.find_last_of("./");
  std::string module(layer.substr(0, end == layer.npos ? 0 : end));
  std::ranges::replace(module, '/', '.');
  return module;
}

// Returns true iff the module is `outer` or in it.
bool IsWithin(std::string_view module, std::string_view outer) {
  return outer.empty() || module == outer ||
         (module.starts_with(outer) && module[outer.size()] == '.');
}

// The parameters of a module that forward gathers together. Places are those of ops.
struct Gathered {
  std::vector<std::string> modules;  // one, or several that are gathered together
  std::vector<size_t> ops;  // that copy the shards together and gather them, in their order
  size_t copy_out = 0;      // the op that copies the parameters out
  size_t end = 0;           // the last op of the module's forward
  size_t backward = 0;      // the first op of its backward
  size_t pass_end = 0;      // the op behind this pass's backward
  bool is_root = false;     // its parameters stay
};

// Finds what is gathered in a step. Throws `UsageError` where the step cannot be changed.
class Gathering {
 public:
  explicit Gathering(const Trace& trace)
      : trace_(trace), shards_(trace, ReachOfShards(trace)), modules_(trace.layers.size()) {
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i] = ModuleOf(trace.layers[i].name);
  }

  // Returns what the passes of forward gather, in the order in which forward ends with it; nothing
  // if backward gathers parameters.
  std::vector<Gathered> Find() const {
    std::vector<Gathered> all;
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      if (!shards_.GathersParameters(trace_.ops[i])) continue;
      if (trace_.ops[i].phase == Phase::kBackward) return {};
      if (trace_.ops[i].phase == Phase::kForward) all.push_back(FindOps(i));
    }
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      const size_t backward = EndOf(all[begin].copy_out, Phase::kForward);
      while (end < all.size() && all[end].copy_out < backward) ++end;
      FindPass(std::span(all).subspan(begin, end - begin), backward);
    }
    return all;
  }

  const Liveness& liveness() const { return shards_.liveness(); }

 private:
  const std::string& ModuleAt(size_t op) const { return modules_[Index(trace_.ops[op].layer)]; }

  // Returns the place behind the ops of the phase that begin at or behind `begin`.
  size_t EndOf(size_t begin, Phase phase) const {
    while (begin < trace_.ops.size() && trace_.ops[begin].phase != phase) ++begin;
    while (begin < trace_.ops.size() && trace_.ops[begin].phase == phase) ++begin;
    return begin;
  }

  // Finds the ops of a gather.
  Gathered FindOps(size_t gather) const {
    std::set<size_t> ops{gather};
    std::vector<size_t> open{gather};
    while (!open.empty()) {
      const Op& op = trace_.ops[open.back()];
      open.pop_back();
      for (const TensorId id : op.inputs) {
        const TensorId root = liveness().Root(id);
        if (IsPersistent(trace_.tensor(root).kind)) continue;
        for (const OpId writer : liveness().Writers(root)) {
          if (Index(writer) < gather && ops.insert(Index(writer)).second) {
            open.push_back(Index(writer));
          }
        }
      }
    }
    Gathered found;
    found.ops.assign(ops.begin(), ops.end());
    const TensorId whole = liveness().Root(trace_.ops[gather].outputs[0]);
    for (const OpId use : liveness().Uses(whole)) {
      if (Index(use) <= gather) continue;
      if (found.copy_out > 0 || !shards_.CopiesOut(trace_.op(use))) {
        throw UsageError(fmt::format("'{}' uses what '{}' gathers", trace_.op(use).name,
                                     trace_.ops[gather].name));
      }
      found.copy_out = Index(use);
    }
    if (found.copy_out == 0) {
      throw UsageError(fmt::format("nothing uses what '{}' gathers", trace_.ops[gather].name));
    }
    found.modules = {ModuleAt(found.copy_out)};
    return found;
  }

  // Finds where the modules of one pass of forward, which ends before op `backward`, begin and end,
  // and sorts them.
  void FindPass(std::span<Gathered> pass, size_t backward) const {
    const auto is_root = [&](const Gathered& one) {
      return std::ranges::all_of(
          pass, [&](const Gathered& other) { return IsWithin(other.modules[0], one.modules[0]); });
    };
    if (std::ranges::count_if(pass, is_root) > 1) {
      throw UsageError("the recording does not name the modules; record it with model=...");
    }
    const size_t pass_end = EndOf(backward, Phase::kBackward);
    size_t forward_end = backward - 1;  // of the root
    if (const auto held =
            trace_.tensor(liveness().Root(trace_.ops[pass.back().ops.back()].outputs[0]))
                .held_until) {
      forward_end = std::min(forward_end, Index(*held));
    }
    std::set<LayerId> layers;  // of the root
    for (size_t i = 0; i <= forward_end; ++i) layers.insert(trace_.ops[i].layer);
    for (Gathered& one : pass) {
      one.pass_end = pass_end;
      one.is_root = is_root(one);
      one.end = one.is_root ? forward_end : one.copy_out;
      if (!one.is_root) AddModules(one, backward);
      const auto is_own = [&](size_t i) {
        return one.is_root ? layers.contains(trace_.ops[i].layer) : IsIn(i, one);
      };
      for (size_t i = one.copy_out; i < backward && !one.is_root; ++i) {
        if (is_own(i)) one.end = i;
      }
      one.backward = backward;
      while (one.backward < pass_end && !is_own(one.backward)) ++one.backward;
      Check(one, backward);
    }
    std::ranges::sort(pass, {}, [](const Gathered& one) {
      return std::tuple(one.is_root, one.end, -static_cast<int64_t>(one.modules[0].size()));
    });
  }

  // Returns true iff the op belongs to one of the modules.
  bool IsIn(size_t op, const Gathered& one) const {
    return std::ranges::any_of(
        one.modules, [&](const std::string& module) { return IsWithin(ModuleAt(op), module); });
  }

  // Adds the modules whose forward uses parameters of the first one, as `fully_shard` takes a list.
  void AddModules(Gathered& one, size_t backward) const {
    for (const TensorId parameter : trace_.ops[one.copy_out].outputs) {
      for (const OpId use : liveness().Uses(liveness().Root(parameter))) {
        const std::string& module = ModuleAt(Index(use));
        if (Index(use) < backward && !IsIn(Index(use), one)) one.modules.push_back(module);
      }
    }
  }

  // Throws `UsageError` unless only the module's own ops use its parameters, one after the other.
  void Check(const Gathered& one, size_t backward) const {
    if (one.is_root) return;
    const std::string& module = one.modules[0];
    for (size_t i = one.copy_out; i <= one.end; ++i) {
      const Op& op = trace_.ops[i];
      if (op.lane == trace_.ops[one.copy_out].lane && !op.inputs.empty() && !IsIn(i, one)) {
        throw UsageError(fmt::format("module '{}' runs more than once in forward", module));
      }
    }
    for (const TensorId parameter : trace_.ops[one.copy_out].outputs) {
      const TensorId root = liveness().Root(parameter);
      for (const OpId use : liveness().Uses(root)) {
        if ((Index(use) >= backward && Index(use) < one.backward) || Index(use) >= one.pass_end) {
          throw UsageError(
              fmt::format("'{}' uses parameters of module '{}'", trace_.op(use).name, module));
        }
      }
      const OpId last = *liveness().LastUse(root);
      if (Index(std::max(last, trace_.tensor(root).held_until.value_or(last))) < backward) {
        throw UsageError(
            fmt::format("'{}' copies shards of another dimension of parameters than the first",
                        trace_.ops[one.copy_out].name));
      }
    }
  }

  const Trace& trace_;
  const Shards shards_;
  std::vector<std::string> modules_;  // by layer
};

// Writes the step that gathers parameters again in backward.
class Resharding {
 public:
  Resharding(const Trace& trace, const Liveness& liveness, const std::vector<Gathered>& gathered)
      : from_(trace),
        liveness_(liveness),
        gathered_(gathered),
        to_(trace),
        states_(gathered.size()),
        again_(trace.tensors.size()),
        places_(trace.ops.size()),
        names_(trace) {}

  Trace Build() {
    // The modules whose backward begins at an op; the outermost first.
    std::map<size_t, std::vector<size_t>> begins;
    for (size_t i = gathered_.size(); i-- > 0;) {
      const Gathered& one = gathered_[i];
      copies_out_.insert(one.copy_out);
      if (one.backward < one.pass_end) begins[PlaceBefore(one.backward)].push_back(i);
    }
    to_.ops.clear();
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      if (const auto found = begins.find(i); found != begins.end()) {
        for (const size_t one : found->second) BeginBackward(one);
      }
      Op op = from_.ops[i];
      for (auto* operands : {&op.inputs, &op.outputs}) {
        if (op.phase != Phase::kBackward) break;
        for (TensorId& id : *operands) id = Again(id);
      }
      for (OpId& other : op.after) other = places_[Index(other)];
      to_.ops.push_back(std::move(op));
      places_[i] = static_cast<OpId>(to_.ops.size() - 1);
      if (copies_out_.contains(i)) copied_out_ = places_[i];
    }
    Hold();
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  enum class State : uint8_t { kFreed, kInFlight, kThere };

  // Returns the place before ops without operands that belong to the op, such as those that
  // allocate a workspace.
  size_t PlaceBefore(size_t op) const {
    while (from_.ops[op - 1].phase == Phase::kBackward && from_.ops[op - 1].inputs.empty()) --op;
    return op;
  }

  // Does what FSDP2 does before the backward of a module.
  void BeginBackward(size_t index) {
    const Gathered& one = gathered_[index];
    if (!one.is_root) {
      Gather(index, one.backward);
      AddAgain(one.copy_out, one.backward);
      states_[index] = State::kThere;
      copied_out_ = static_cast<OpId>(to_.ops.size() - 1);
    }
    const bool is_first = index == 0 || gathered_[index - 1].pass_end != one.pass_end;
    if (!is_first && !gathered_[index - 1].is_root) Gather(index - 1, one.backward);
  }

  // Adds the ops that gather the parameters, unless they are on their way, beside op `near`.
  void Gather(size_t index, size_t near) {
    if (std::exchange(states_[index], State::kInFlight) != State::kFreed) return;
    const std::vector<size_t>& ops = gathered_[index].ops;
    for (const size_t op : ops) {
      Op& added = AddAgain(op, near);
      if (op == ops.front() || op == ops.back()) added.after.push_back(copied_out_);
      std::ranges::sort(added.after);
    }
  }

  // Adds an op of forward once more, beside op `near`.
  Op& AddAgain(size_t index, size_t near) {
    Op op = from_.ops[index];
    op.name = names_.Of(op.name + ".again");
    op.layer = from_.ops[near].layer;
    op.phase = Phase::kBackward;
    op.recomputable = false;
    const auto work = std::ranges::find(op.attributes, "operators", &Attribute::name);
    if (work != op.attributes.end() && OperatorOf(op) == "fsdp::all_gather_copy_in") {
      const double now = kHostOfModule + kHostOfParameter * op.FindAttribute("tensors").value_or(0);
      const auto host = static_cast<double>(op.recorded->host.picoseconds());
      op.recorded->host = Duration::Picoseconds(std::llround(host * now / work->value));
      work->value = now;
    }
    for (const TensorId id : op.outputs) AddStorage(id);
    for (auto* operands : {&op.inputs, &op.outputs}) {
      for (TensorId& id : *operands) id = Again(id);
    }
    std::vector<OpId> after;
    for (const OpId other : op.after) {
      if (const auto found = ops_again_.find(Index(other)); found != ops_again_.end()) {
        after.push_back(found->second);
      }
    }
    op.after = std::move(after);
    ops_again_[index] = static_cast<OpId>(to_.ops.size());
    return to_.ops.emplace_back(std::move(op));
  }

  // Adds a storage for what an op writes once more, unless there is one.
  void AddStorage(TensorId id) {
    const TensorId root = liveness_.Root(id);
    if (!again_[Index(root)]) again_[Index(root)] = AddTensor(root);
  }

  TensorId AddTensor(TensorId of) {
    Tensor tensor = from_.tensor(of);
    tensor.name = names_.Of(tensor.name + ".again");
    tensor.kind = TensorKind::kGradient;
    tensor.request.reset();
    to_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(to_.tensors.size() - 1);
  }

  // Returns the tensor that stands for `id` once its storage was written again.
  TensorId Again(TensorId id) {
    if (again_[Index(id)] || !again_[Index(liveness_.Root(id))]) {
      return again_[Index(id)].value_or(id);
    }
    const TensorId outer = Again(*from_.tensor(id).alias_of);
    const TensorId view = AddTensor(id);
    to_.tensors[Index(view)].alias_of = outer;
    again_[Index(id)] = view;
    return view;
  }

  // Says how long the program holds storages beyond their last use. In forward, a gathered tensor
  // is there until the next one is copied out; in backward, until it is copied out itself.
  void Hold() {
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      std::optional<OpId>& held = to_.tensors[i].held_until;
      if (!held) continue;
      if (again_[i]) {
        const auto ends = ops_again_.find(Index(*held));
        std::optional<OpId>& later = to_.tensors[Index(*again_[i])].held_until;
        later.reset();
        const bool is_copied = copies_out_.contains(Index(*held));
        if (ends != ops_again_.end() && !is_copied) later = ends->second;
        if (from_.op(*held).phase != Phase::kForward) later = places_[Index(*held)];
      }
      held = places_[Index(*held)];
    }
    for (const Gathered& one : gathered_) {
      if (one.is_root) continue;
      for (const TensorId id : from_.ops[one.copy_out].outputs) {
        to_.tensors[Index(liveness_.Root(id))].held_until = places_[one.end];
      }
      if (one.backward < one.pass_end) continue;
      // It was gathered ahead of time for nothing, and is there until backward ends.
      const TensorId whole = liveness_.Root(from_.ops[one.ops.back()].outputs[0]);
      if (again_[Index(whole)]) {
        to_.tensors[Index(*again_[Index(whole)])].held_until = places_[one.pass_end - 1];
      }
    }
  }

  const Trace& from_;
  const Liveness& liveness_;
  const std::vector<Gathered>& gathered_;
  Trace to_;
  std::vector<State> states_;                   // by `gathered_`
  std::vector<std::optional<TensorId>> again_;  // by tensor: what stands for it in backward
  std::vector<OpId> places_;                    // by recorded op
  std::map<size_t, OpId> ops_again_;            // by recorded op
  OpId copied_out_{};                           // the last op that copied parameters out
  std::set<size_t> copies_out_;                 // recorded ops
  NewNames names_;
};

// A reduction of gradients in fp32 that are bf16 before it. Places are those of ops.
struct Reduction {
  size_t copy_in = 0;  // the op that puts the gradients side by side
  size_t scatter = 0;  // the reduce-scatter
  size_t last = 0;     // the last op that changes its result as a whole, such as all-reduces
  std::optional<size_t> cast;  // the op behind it that casts the result to bf16
};

// Finds the reductions of a step. Throws `UsageError` where the step cannot be changed.
std::vector<Reduction> FindReductions(const Trace& trace, const Liveness& liveness) {
  const Shards shards(trace, ReachOfShards(trace));
  const auto is = [&](TensorId id, DataType type) { return trace.tensor(id).dtype == type; };
  const auto gathers_short = [&](const Op& op) {
    return shards.GathersParameters(op) && is(op.outputs[0], DataType::kBfloat16);
  };
  std::vector<Reduction> found;
  if (std::ranges::none_of(trace.ops, gathers_short)) return found;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (!shards.Grows(op) || OperatorOf(op) != "reduce_scatter") continue;
    const TensorId whole = liveness.Root(op.inputs[0]), result = liveness.Root(op.outputs[0]);
    const auto uses = liveness.Uses(whole);
    const size_t copy_in = Index(uses[0]);
    if (!is(whole, DataType::kFloat32) || OperatorOf(trace.ops[copy_in]) != kCopyIn) continue;
    const auto is_long = [&](TensorId id) { return is(id, DataType::kFloat32); };
    if (std::ranges::any_of(trace.ops[copy_in].inputs, is_long)) {
      throw UsageError(
          fmt::format("'{}' reduces gradients that were added up, or made, in fp32", op.name));
    }
    for (const OpId use : uses) {
      if (Index(use) == copy_in || Index(use) == i) continue;
      throw UsageError(
          fmt::format("'{}' uses gradients beside their reduction", trace.op(use).name));
    }
    Reduction one{copy_in, i, i, {}};
    for (const OpId use : liveness.Uses(result)) {
      const Op& user = trace.op(use);
      if (Index(use) <= i || user.phase != Phase::kBackward) continue;
      if (std::ranges::count(user.inputs, result) == 0) continue;
      const bool is_next = Index(use) == one.last + 1 && !one.cast;
      if (is_next && user.outputs == std::vector{result}) {
        one.last = Index(use);
      } else if (is_next && OperatorOf(user) == "aten::_to_copy" &&
                 is(user.outputs[0], DataType::kBfloat16)) {
        one.cast = Index(use);
      } else {
        throw UsageError(fmt::format("'{}' uses gradients while they are reduced", user.name));
      }
    }
    found.push_back(one);
  }
  return found;
}

// Writes the step whose reductions are in bf16.
class ShortReductions {
 public:
  ShortReductions(const Trace& trace, const Device& device, const Liveness& liveness,
                  const std::vector<Reduction>& reductions)
      : from_(trace), device_(device), liveness_(liveness), to_(trace), names_(trace) {
    for (const Reduction& one : reductions) {
      for (size_t i = one.scatter; i <= one.last; ++i) reductions_[i] = &one;
      copies_in_[one.copy_in] = &one;
      if (one.cast) casts_.insert(*one.cast);
    }
  }

  Trace Build() {
    to_.ops.clear();
    for (size_t i = 0; i < from_.ops.size(); ++i) {
      Op op = from_.ops[i];
      Wait(op, reductions_.contains(i));
      if (casts_.contains(i)) {
        places_.push_back(places_.back());
        ends_.push_back(ends_.back());
        continue;
      }
      if (copies_in_.contains(i)) Shorten(op);
      const auto reduction = reductions_.find(i);
      if (reduction != reductions_.end()) Reduce(*reduction->second, i, op);
      to_.ops.push_back(std::move(op));
      places_.push_back(static_cast<OpId>(to_.ops.size() - 1));
      if (reduction != reductions_.end() && reduction->second->last == i &&
          !reduction->second->cast) {
        AddCast(*reduction->second);
      }
      ends_.push_back(static_cast<OpId>(to_.ops.size() - 1));
    }
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      std::optional<OpId>& held = to_.tensors[i].held_until;
      if (held) held = ends_[Index(*held)];
    }
    for (const auto& [id, end] : held_) to_.tensors[Index(id)].held_until = ends_[end];
    ForgetRecorded(to_);
    to_.Validate();
    return std::move(to_);
  }

 private:
  TensorId ResultOf(const Reduction& one) const {
    return liveness_.Root(from_.ops[one.scatter].outputs[0]);
  }

  // Corrects what the op waits for: the end of a reduction, but for another one only the
  // reduce-scatter.
  void Wait(Op& op, bool reduces) const {
    const bool is_part = reduces || OperatorOf(op) == kCopyIn;
    for (OpId& other : op.after) other = (is_part ? places_ : ends_)[Index(other)];
    std::ranges::sort(op.after);
    op.after.erase(std::ranges::unique(op.after).begin(), op.after.end());
  }

  // Halves what an op writes that puts gradients side by side.
  void Shorten(Op& op) {
    const TensorId whole = liveness_.Root(op.outputs[0]);
    for (size_t i = 0; i < from_.tensors.size(); ++i) {
      if (liveness_.Root(static_cast<TensorId>(i)) == whole) Halve(to_.tensors[i]);
    }
    int64_t read = 0;
    for (const TensorId id : op.inputs) read += from_.tensor(id).size.count();
    Bytes& traffic = op.slots[0].traffic;
    const int64_t before = traffic.count();
    if (before <= read) return;
    traffic = Bytes(read + (before - read) / 2);
    const auto time = static_cast<Int128>(op.recorded->time.picoseconds());
    op.recorded->time =
        Duration::Picoseconds(static_cast<int64_t>(time * traffic.count() / before));
  }

  // Makes an op reduce in bf16.
  void Reduce(const Reduction& one, size_t index, Op& op) {
    const TensorId result = ResultOf(one);
    if (index == one.scatter) {
      Tensor& before = to_.tensors[Index(result)];
      if (one.cast) {
        short_ = from_.ops[*one.cast].outputs[0];
        to_.tensors[Index(short_)].lane = before.lane;
        before.held_until.reset();
      } else {
        Tensor reduced = before;
        reduced.name = names_.Of(reduced.name + ".bfloat16");
        reduced.kind = TensorKind::kGradient;
        reduced.held_until.reset();
        Halve(reduced);
        short_ = static_cast<TensorId>(to_.tensors.size());
        before.lane = from_.ops[one.last].lane;
        to_.tensors.push_back(std::move(reduced));
        // FSDP2 holds what it has reduced among replicas until backward ends.
        const size_t end = EndOfBackward(one.last);
        if (one.last > one.scatter) {
          held_.emplace_back(short_, end);
          std::optional<OpId>& held = to_.tensors[Index(result)].held_until;
          if (held == static_cast<OpId>(end)) held.reset();
        }
      }
    }
    for (auto* operands : {&op.inputs, &op.outputs})
      std::ranges::replace(*operands, result, short_);
    for (Attribute& attribute : op.attributes) {
      if (op.IsCollective() && attribute.name == "bytes") attribute.value /= 2;
    }
  }

  size_t EndOfBackward(size_t op) const {
    while (op + 1 < from_.ops.size() && from_.ops[op + 1].phase == Phase::kBackward) ++op;
    return op;
  }

  void AddCast(const Reduction& one) {
    const TensorId result = ResultOf(one);
    const int64_t elements = Elements(from_.tensor(result));
    const Bytes traffic(6 * elements);  // it reads and writes 2 and 4 bytes
    const bool timed = !from_.recording->device.empty();
    Op op = NewOp(names_.Of(from_.tensor(result).name + ".to"),
                  fmt::format("aten::_to_copy {}", elements), from_.ops[one.last],
                  timed ? TransferTime(traffic, device_.dram) : Duration());
    if (!timed) op.slots[0].traffic = traffic;
    op.attributes = {{"elements", static_cast<double>(elements)},
                     {"operands", 2},
                     {"row", 1},
                     {"strided", 0},
                     {"broadcast", 0}};
    op.lane = from_.ops[one.last].lane;
    op.inputs = {short_};
    op.outputs = {result};
    to_.ops.push_back(std::move(op));
  }

  const Trace& from_;
  const Device& device_;
  const Liveness& liveness_;
  Trace to_;
  std::map<size_t, const Reduction*> reductions_, copies_in_;  // by op
  std::set<size_t> casts_;                                     // ops
  std::vector<OpId> places_;                                   // by recorded op
  std::vector<OpId> ends_;                                     // the same, or the cast behind it
  TensorId short_{};                                           // what the current reduction writes
  std::vector<std::pair<TensorId, size_t>> held_;              // until recorded ops
  NewNames names_;
};

}  // namespace

std::optional<Trace> WithReshardAfterForward(const Trace& trace, std::string& why_not) {
  if (ReachOfShards(trace) == 0) return std::nullopt;
  try {
    const Gathering gathering(trace);
    const std::vector<Gathered> gathered = gathering.Find();
    if (std::ranges::all_of(gathered, &Gathered::is_root)) return std::nullopt;
    return Resharding(trace, gathering.liveness(), gathered).Build();
  } catch (const UsageError& error) {
    why_not = error.what();
    return std::nullopt;
  }
}

std::optional<Trace> WithBfloat16Reduction(const Trace& trace, const Device& device,
                                           std::string& why_not) {
  try {
    const Liveness liveness(trace);
    const std::vector<Reduction> reductions = FindReductions(trace, liveness);
    if (reductions.empty()) return std::nullopt;
    return ShortReductions(trace, device, liveness, reductions).Build();
  } catch (const UsageError& error) {
    why_not = error.what();
    return std::nullopt;
  }
}

}  // namespace spillway::lab
