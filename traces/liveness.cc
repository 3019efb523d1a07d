#include "traces/liveness.h"

#include <algorithm>
#include <initializer_list>

namespace spillway::traces {

Liveness::Liveness(const Trace& trace)
    : roots_(trace.tensors.size()), offsets_(trace.tensors.size()) {
  FindRoots(trace);

  Rows<TensorId> written;
  std::vector<uint32_t> seen(roots_.size(), 0);  // the last pass that met the storage
  uint32_t pass = 0;
  const auto append_row = [&](Rows<TensorId>& rows,
                              std::initializer_list<const std::vector<TensorId>*> lists) {
    rows.begin.push_back(static_cast<uint32_t>(rows.values.size()));
    ++pass;
    for (const std::vector<TensorId>* list : lists) {
      for (const TensorId id : *list) {
        const TensorId root = Root(id);
        if (seen[Index(root)] == pass) continue;
        seen[Index(root)] = pass;
        rows.values.push_back(root);
      }
    }
  };
  for (const Op& op : trace.ops) {
    append_row(op_storages_, {&op.inputs, &op.outputs, &op.scratch});
    append_row(written, {&op.outputs});
  }
  append_row(op_storages_, {});
  append_row(written, {});
  uses_ = Invert(op_storages_, roots_.size());
  writers_ = Invert(written, roots_.size());
}

// Finds the root and the offset of each tensor. Visits each link of an alias chain once.
void Liveness::FindRoots(const Trace& trace) {
  std::vector<bool> known(roots_.size());
  std::vector<TensorId> chain;
  for (size_t i = 0; i < roots_.size(); ++i) {
    auto at = static_cast<TensorId>(i);
    for (; !known[Index(at)] && trace.tensor(at).alias_of; at = *trace.tensor(at).alias_of) {
      chain.push_back(at);
    }
    const TensorId root = known[Index(at)] ? roots_[Index(at)] : at;
    roots_[Index(at)] = root;
    known[Index(at)] = true;
    for (; !chain.empty(); chain.pop_back()) {  // from the root to the end of the chain
      const size_t link = Index(chain.back());
      roots_[link] = root;
      offsets_[link] = offsets_[Index(*trace.tensors[link].alias_of)] + trace.tensors[link].offset;
      known[link] = true;
    }
  }
}

Liveness::Rows<OpId> Liveness::Invert(const Rows<TensorId>& rows, size_t storages) {
  Rows<OpId> inverse;
  inverse.begin.assign(storages + 1, 0);
  for (const TensorId id : rows.values) ++inverse.begin[Index(id) + 1];
  for (size_t i = 0; i < storages; ++i) inverse.begin[i + 1] += inverse.begin[i];
  inverse.values.resize(rows.values.size());
  std::vector<uint32_t> next(inverse.begin.begin(), inverse.begin.end() - 1);
  for (size_t op = 0; op + 1 < rows.begin.size(); ++op) {
    for (const TensorId id : Row(rows, op)) {
      inverse.values[next[Index(id)]++] = static_cast<OpId>(op);
    }
  }
  return inverse;
}

std::optional<OpId> Liveness::FirstUse(TensorId storage) const {
  const auto uses = Uses(storage);
  return uses.empty() ? std::nullopt : std::optional(uses.front());
}

std::optional<OpId> Liveness::LastUse(TensorId storage) const {
  const auto uses = Uses(storage);
  return uses.empty() ? std::nullopt : std::optional(uses.back());
}

bool Alike(const Trace& trace, const Liveness& liveness, OpId one, OpId other) {
  const Op& a = trace.op(one);
  const Op& b = trace.op(other);
  return a.type == b.type && a.phase == b.phase &&
         std::ranges::find_first_of(liveness.Storages(one), liveness.Storages(other)) !=
             liveness.Storages(one).end();
}

}  // namespace spillway::traces
