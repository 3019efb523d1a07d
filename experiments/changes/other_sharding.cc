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

// Returns the largest reach of groups that gather parameters in forward; 0 if there are none.
int64_t ReachOfShards(const Trace& trace) {
  std::set<int64_t> reaches;
  for (const Op& op : trace.ops) {
    if (op.IsCollective()) reaches.insert(Number(op, "ranks") * Number(op, "stride"));
  }
  for (auto reach = reaches.rbegin(); reach != reaches.rend(); ++reach) {
    const Shards shards(trace, *reach);
    const auto gathers = [&](const Op& op) {
      return op.phase == Phase::kForward && shards.GathersParameters(op);
    };
    if (std::ranges::any_of(trace.ops, gathers)) return *reach;
  }
  return 0;
}

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
        places_(trace.ops.size()) {
    for (const Tensor& tensor : trace.tensors) names_.insert(tensor.name);
    for (const Op& op : trace.ops) names_.insert(op.name);
  }

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

  std::string NewName(const std::string& name) {
    std::string wanted = name + ".again";
    for (int number = 1; !names_.insert(wanted).second; ++number) {
      wanted = fmt::format("{}.again.{}", name, number);
    }
    return wanted;
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
    op.name = NewName(op.name);
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
    tensor.name = NewName(tensor.name);
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
  std::set<std::string> names_;
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

}  // namespace spillway::lab
