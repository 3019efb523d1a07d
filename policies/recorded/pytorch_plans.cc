#include "policies/recorded/pytorch_plans.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "traces/blocks.h"
#include "traces/liveness.h"
#include "traces/ops/op_table.h"

namespace spillway::policies {
namespace {

// The use of one storage in forward and backward.
struct Storage {
  std::optional<OpId> maker;   // the first op of forward that writes it
  std::vector<OpId> readers;   // ops of forward
  bool saved = false;          // for an op of backward that reads it
  bool written_later = false;  // by an op of backward
  bool from_outside = false;   // a parameter, optimizer state or input
};

std::vector<Storage> FindStorages(const Trace& trace) {
  std::vector<Storage> storages(trace.tensors.size());
  const Liveness liveness(trace);
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TensorKind kind = trace.tensors[i].kind;
    storages[i].from_outside = kind == TensorKind::kParameter || kind == TensorKind::kInput ||
                               kind == TensorKind::kOptimizerState;
  }
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    const auto id = static_cast<OpId>(i);
    if (op.phase == Phase::kUpdate) continue;
    const bool later = op.phase == Phase::kBackward;
    for (const TensorId input : op.inputs) {
      Storage& storage = storages[Index(liveness.Root(input))];
      if (later && trace.saved.empty()) storage.saved = true;
      if (!later) storage.readers.push_back(id);
    }
    for (const TensorId output : op.outputs) {
      Storage& storage = storages[Index(liveness.Root(output))];
      if (later) storage.written_later = true;
      if (!later && !storage.maker) storage.maker = id;
    }
  }
  for (const KeptForBackward& kept : trace.saved) {
    if (!kept.unpacked.empty()) storages[Index(liveness.Root(kept.tensor))].saved = true;
  }
  return storages;
}

}  // namespace

SavedTensorsPlan SaveOnCpu(const Trace& trace) {
  const std::vector<Storage> storages = FindStorages(trace);
  SavedTensorsPlan plan{std::vector<SavedTensor>(trace.tensors.size()), true};
  for (size_t i = 0; i < storages.size(); ++i) {
    const Storage& storage = storages[i];
    const TensorKind kind = trace.tensors[i].kind;
    const bool is_there =
        storage.maker || kind == TensorKind::kParameter || kind == TensorKind::kInput;
    if (is_there && storage.saved && !storage.written_later) {
      plan.tensors[i].fate = SavedFate::kOffload;
    }
  }
  return plan;
}

bool IsCostly(const Op& op) { return RowOf(op.type).products; }

SavedTensorsPlan CheckpointBlocks(const Trace& trace, size_t count, Recomputed recomputed) {
  const std::vector<Storage> storages = FindStorages(trace);
  const std::vector<std::string> blocks = BlocksOf(trace);
  std::vector<std::string> chosen = BlocksInOrder(trace);
  chosen.resize(std::min(count, chosen.size()));
  const auto block_of = [&](OpId op) -> const std::string& {
    return blocks[Index(trace.op(op).layer)];
  };
  SavedTensorsPlan plan{std::vector<SavedTensor>(trace.tensors.size()), false};
  for (size_t i = 0; i < storages.size(); ++i) {
    const Storage& storage = storages[i];
    if (!storage.maker || storage.from_outside) continue;
    const std::string& block = block_of(*storage.maker);
    const bool is_chosen = std::ranges::find(chosen, block) != chosen.end();
    const bool leaves = std::ranges::any_of(storage.readers,
                                            [&](OpId reader) { return block_of(reader) != block; });
    if (is_chosen && recomputed == Recomputed::kCheapOps && IsCostly(trace.op(*storage.maker))) {
      plan.tensors[i] = {SavedFate::kSave, block};
    } else if (leaves) {
      plan.tensors[i].fate = SavedFate::kSave;
    } else if (is_chosen && storage.saved && !storage.written_later) {
      plan.tensors[i] = {SavedFate::kRecompute, block};
    }
  }
  return plan;
}

}  // namespace spillway::policies
