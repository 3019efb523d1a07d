// A step that PyTorch has run, joined from what the profiler and the execution trace say of it:
// which operators launched work, in the order in which the host launched it, and what memory they
// had.

#ifndef SPILLWAY_TRACES_IMPORT_JOINED_STEP_H_
#define SPILLWAY_TRACES_IMPORT_JOINED_STEP_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "traces/import/execution_trace.h"
#include "traces/import/kineto.h"
#include "traces/import/operators.h"
#include "traces/import/storages.h"
#include "traces/ops/op_type.h"

namespace spillway {

class JoinedStep {
 public:
  // Where in the program a node runs.
  enum class Where : uint8_t { kProgram, kBackward, kUpdate };

  // A node with what is known of it from all sides.
  struct Call {
    const ExecutionTrace::Node* node = nullptr;
    const KinetoTrace::Operator* profiled = nullptr;
    const Call* parent = nullptr;
    Where where = Where::kProgram;
    int64_t sequence = -1;  // of the autograd node that it makes, or runs for
    std::string_view block;
    bool leaf = true;
    bool launches = false;
    StorageTable::Operands operands;
  };

  // What becomes an op.
  struct Unit {
    const Call* call = nullptr;  // nullptr: kernels that no operator launched
    int64_t launched = 0;        // when the host had launched its first kernel
    int64_t time = 0, kernels = 0;
    Phase phase = Phase::kForward;
    std::vector<uint32_t> extra;  // storages given out while it ran that it leaves behind
    int64_t workspace = 0;
  };

  // The traces outlive this; the files stand for them in messages. Throws `InputError` if the two
  // are of different runs, have no memory events, or are of several GPUs.
  JoinedStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
             const std::string& kineto_file, const std::string& execution_file);
  JoinedStep(const JoinedStep&) = delete;
  JoinedStep& operator=(const JoinedStep&) = delete;

  bool has_gpu() const { return gpu_; }
  // In the order in which the host launched them.
  const std::vector<Unit>& units() const { return units_; }
  const StorageTable& table() const { return storages_; }
  const std::vector<StorageTable::Storage>& storages() const { return storages_.storages(); }
  // Whether a unit has the storage among its operands, or leaves it behind.
  bool used(uint32_t storage) const { return used_[storage]; }

  // The number of units that the host had launched at a time.
  size_t LaunchedBy(int64_t time) const;
  // What the GPU takes between two kernels of a stream, where the host was ahead: the median.
  int64_t KernelGap() const;
  // The operators that began in (from, to].
  int64_t BegunIn(int64_t from, int64_t to) const;

  int64_t joined() const { return joined_; }      // operators in both traces
  int64_t unjoined() const { return unjoined_; }  // time of kernels of no operator
  int64_t unnamed() const { return unnamed_; }    // bytes held over units, of no tensor known

 private:
  bool FindGpu() const;
  void JoinNodes();
  void JoinStorages();
  bool Computes(const Call& call) const;
  void MakeUnits();
  int64_t LaunchedAt(const KinetoTrace::Activity& activity, const Call* call) const;
  void SetPhases();
  void PlaceStorages();
  size_t UnitAt(int64_t time) const;
  int64_t EndOf(size_t unit) const;

  const KinetoTrace& kineto_;
  const ExecutionTrace& execution_;
  const std::string kineto_file_, execution_file_;
  const bool gpu_;
  StorageTable storages_;
  std::vector<Call> calls_;  // by the node's number
  std::unordered_map<int64_t, Call*> by_external_;
  std::vector<Unit> units_;
  std::vector<bool> used_;
  int64_t joined_ = 0, unjoined_ = 0, unnamed_ = 0;
};

// Calls `visit(ref, storage, writes)` for each operand that lies in a storage; inputs that are
// written too come as both. `ref` is nullptr for what a unit leaves behind.
template <typename Visit>
void ForOperands(const JoinedStep::Unit& unit, const Visit& visit) {
  if (unit.call != nullptr) {
    const ExecutionTrace::Node& node = *unit.call->node;
    const StorageTable::Operands& operands = unit.call->operands;
    for (size_t i = 0; i < operands.inputs.size(); ++i) {
      if (operands.inputs[i] == StorageTable::kNone) continue;
      visit(&node.inputs[i], operands.inputs[i], false);
      if (Writes(node, node.inputs[i].argument)) {
        visit(&node.inputs[i], operands.inputs[i], true);
      }
    }
    for (size_t i = 0; i < operands.outputs.size(); ++i) {
      const uint32_t storage = operands.outputs[i];
      // What is put out of what came in is a view, or was written as an input.
      if (storage == StorageTable::kNone || std::ranges::count(operands.inputs, storage) != 0)
        continue;
      visit(&node.outputs[i], storage, true);
    }
  }
  for (const uint32_t storage : unit.extra) visit(nullptr, storage, true);
}

}  // namespace spillway

#endif  // SPILLWAY_TRACES_IMPORT_JOINED_STEP_H_
