// Joins the profiler's trace and the execution trace of one step that PyTorch ran. The result lists
// the operators that launched work, in the order in which the host launched it, with their memory.

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

namespace spillway::traces {

class JoinedStep {
 public:
  // The part of the program in which a node runs.
  enum class Where : uint8_t { kProgram, kBackward, kUpdate };

  // A node of the execution trace, joined with its event in the profiler's trace.
  struct Call {
    const ExecutionTrace::Node* node = nullptr;
    const KinetoTrace::Operator* profiled = nullptr;
    const Call* parent = nullptr;
    Where where = Where::kProgram;
    int64_t sequence = -1;  // the autograd node that it makes or runs for
    std::string_view block;
    bool leaf = true;
    bool launches = false;
    StorageTable::Operands operands;
  };

  // The operator, or the kernels without operator, that become one op.
  struct Unit {
    const Call* call = nullptr;  // nullptr: kernels that no operator launched
    int64_t launched = 0;        // time at which the host had launched its first kernel
    int64_t time = 0, kernels = 0;
    Phase phase = Phase::kForward;
    std::vector<uint32_t> extra;  // storages that were allocated while it ran and that outlive it
    int64_t workspace = 0;
  };

  // Joins the two traces, which outlive this object. The file names are for messages. Throws
  // `InputError` if the traces are of different runs, lack memory events or the GPU's kernels, or
  // are of several GPUs.
  JoinedStep(const KinetoTrace& kineto, const ExecutionTrace& execution,
             const std::string& kineto_file, const std::string& execution_file);
  JoinedStep(const JoinedStep&) = delete;
  JoinedStep& operator=(const JoinedStep&) = delete;

  bool has_gpu() const { return gpu_; }
  // Returns the units in the order in which the host launched them.
  const std::vector<Unit>& units() const { return units_; }
  const StorageTable& table() const { return storages_; }
  const std::vector<StorageTable::Storage>& storages() const { return storages_.storages(); }
  // Returns true iff a unit has the storage among its operands or its `extra` storages.
  bool used(uint32_t storage) const { return used_[storage]; }

  // Returns the number of units that the host had launched at `time`.
  size_t LaunchedBy(int64_t time) const;
  // Returns the median time of the GPU between two kernels of a stream when the host was ahead, in
  // nanoseconds.
  int64_t KernelGap() const;
  // Returns the number of operators that began in (from, to].
  int64_t BegunIn(int64_t from, int64_t to) const;

  int64_t joined() const { return joined_; }      // number of operators in both traces
  int64_t unjoined() const { return unjoined_; }  // GPU time of kernels without operator
  int64_t unnamed() const { return unnamed_; }    // bytes without tensor held across units

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
  std::vector<Call> calls_;  // by index of the node
  std::unordered_map<int64_t, Call*> by_external_;
  std::vector<Unit> units_;
  std::vector<bool> used_;
  int64_t joined_ = 0, unjoined_ = 0, unnamed_ = 0;
};

// Calls `visit(ref, storage, writes)` for each operand that lies in a storage. An input that is
// also written is visited twice, as a read and as a write. `ref` is nullptr for the `extra`
// storages of a unit.
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
      // An output in the storage of an input is a view, or was visited as a written input.
      if (storage == StorageTable::kNone || std::ranges::count(operands.inputs, storage) != 0)
        continue;
      visit(&node.outputs[i], storage, true);
    }
  }
  for (const uint32_t storage : unit.extra) visit(nullptr, storage, true);
}

}  // namespace spillway::traces

#endif  // SPILLWAY_TRACES_IMPORT_JOINED_STEP_H_
