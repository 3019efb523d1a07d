#include "experiments/changes/shards.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "experiments/changes/changed_op.h"

namespace spillway::lab {

int64_t Number(const Op& op, std::string_view attribute) {
  return std::llround(op.FindAttribute(attribute).value_or(0));
}

int64_t WorldOf(const Trace& trace) {
  int64_t world = 1;
  for (const Op& op : trace.ops) {
    if (op.IsCollective()) world = std::max(world, Number(op, "ranks") * Number(op, "stride"));
  }
  return world;
}

std::vector<int64_t> MeshOf(const Trace& trace) {
  std::set<int64_t> strides;
  for (const Op& op : trace.ops) {
    if (op.IsCollective()) strides.insert(Number(op, "stride"));
  }
  strides.insert(1);
  std::vector<int64_t> mesh;
  int64_t outer = WorldOf(trace);
  for (auto stride = strides.rbegin(); stride != strides.rend(); ++stride) {
    mesh.push_back(outer / *stride);
    outer = *stride;
  }
  return mesh;
}

Shards::Shards(const Trace& trace, int64_t reach)
    : trace_(trace),
      liveness_(trace),
      reach_(reach),
      sharded_(trace.tensors.size()),
      pieces_(trace.tensors.size()),
      groups_(trace.tensors.size()) {
  for (const Op& op : trace.ops) {
    if (Grows(op)) Begin(op);
  }
  while (Follow()) {
  }
}

bool Shards::CopiesOut(const Op& op) const {
  return !op.IsCollective() && op.inputs.size() == 1 && ShardsIn(op.inputs[0]) > 0 &&
         ElementsOf(op.outputs) == Elements(trace_.tensor(op.inputs[0]));
}

bool Shards::GathersParameters(const Op& op) const {
  if (!Grows(op) || OperatorOf(op) != "all_gather") return false;
  std::vector<TensorId> roots;
  std::set<TensorId> seen;
  const auto add = [&](TensorId id) {
    const TensorId root = liveness_.Root(id);
    if (Shrinks(id) && seen.insert(root).second) roots.push_back(root);
  };
  std::ranges::for_each(op.inputs, add);
  for (size_t i = 0; i < roots.size(); ++i) {
    if (IsPersistent(trace_.tensor(roots[i]).kind)) return true;
    for (const OpId writer : liveness_.Writers(roots[i])) {
      if (!trace_.op(writer).IsCollective()) std::ranges::for_each(trace_.op(writer).inputs, add);
    }
  }
  return false;
}

void Shards::Begin(const Op& op) {
  const std::string_view kind = OperatorOf(op);
  const bool gathers = kind == "all_gather";
  if (!gathers && kind != "reduce_scatter") return;
  const auto& shards = gathers ? op.inputs : op.outputs;
  const auto& wholes = gathers ? op.outputs : op.inputs;
  for (const TensorId whole : wholes) {
    groups_[Index(liveness_.Root(whole))] = Number(op, "ranks");
  }
  for (const TensorId shard : shards) {
    if (ShardsIn(shard) == 0) {
      sharded_[Index(liveness_.Root(shard))] = true;
    } else if (liveness_.Root(shard) != shard) {
      pieces_[Index(shard)] = true;
    }
  }
}

int64_t Shards::ElementsOf(const std::vector<TensorId>& ids) const {
  int64_t sum = 0;
  for (const TensorId id : ids) sum += Elements(trace_.tensor(id));
  return sum;
}

bool Shards::Follow() {
  bool changed = false;
  const auto mark = [&](TensorId id) {
    if (Shrinks(id) || ShardsIn(id) > 0) return;
    sharded_[Index(liveness_.Root(id))] = true;
    changed = true;
  };
  const auto mark_all = [&](const std::vector<TensorId>& ids) { std::ranges::for_each(ids, mark); };
  const auto shrinks = [&](TensorId id) { return Shrinks(id); };
  for (const Op& op : trace_.ops) {
    if (op.IsCollective() || op.inputs.empty() || op.outputs.empty()) continue;
    std::set<int64_t> counts;
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) {
        if (Shrinks(id)) counts.insert(Elements(trace_.tensor(id)));
      }
    }
    counts.erase(0);
    counts.erase(1);
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *operands) {
        if (counts.contains(Elements(trace_.tensor(id)))) mark(id);
      }
    }
    const int64_t in = ElementsOf(op.inputs), out = ElementsOf(op.outputs);
    if (in == out && std::ranges::all_of(op.inputs, shrinks)) mark_all(op.outputs);
    if (in == out && std::ranges::all_of(op.outputs, shrinks)) mark_all(op.inputs);
    const int64_t shards = ShardsIn(op.outputs[0]);
    if (shards > 1 && in * shards == out) mark_all(op.inputs);
  }
  return changed;
}

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

}  // namespace spillway::lab
