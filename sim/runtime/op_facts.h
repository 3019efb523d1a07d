// The facts of each op that the runtime needs in every iteration, side by side in memory.
//
// A `Trace` is made for people and many tools, and walking it in every iteration would touch far
// more memory than needed. The table is immutable and depends only on the trace and the cost model,
// so runs of one trace share it.

#ifndef SPILLWAY_SIM_RUNTIME_OP_FACTS_H_
#define SPILLWAY_SIM_RUNTIME_OP_FACTS_H_

#include <span>
#include <vector>

#include "sim/core/cost_model.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::sim {

// A range of bytes that an op reads or writes (touches) in a storage.
struct Touched {
  TensorId storage{};
  Bytes offset;
  Bytes size;
};

class OpTable {
 public:
  // Throws `InputError` if the cost model lacks an entry. Also throws `InputError`, naming the op,
  // if the slowest kernels of all slots up to that op take longer than `kLongestIteration`
  // together. The cost model outlives the table.
  OpTable(const Trace& trace, const Liveness& liveness, const CostModel& cost);

  int64_t batch(OpId op) const { return At(op).batch; }
  Bytes traffic(OpId op) const { return At(op).traffic; }
  OpType type(OpId op) const { return At(op).type; }
  Arithmetic arithmetic(OpId op) const { return At(op).arithmetic; }
  bool collective(OpId op) const { return At(op).collective; }
  std::span<const Touched> Inputs(OpId op) const { return Part(At(op).inputs, At(op).outputs); }
  std::span<const Touched> Outputs(OpId op) const { return Part(At(op).outputs, At(op).scratch); }
  std::span<const Touched> Scratch(OpId op) const { return Part(At(op).scratch, At(op).end); }
  // Returns the outputs, followed by the scratch tensors.
  std::span<const Touched> Written(OpId op) const { return Part(At(op).outputs, At(op).end); }

  // Storages that must hold contents before the op runs, each once, in the op's order. `Needed`
  // returns all inputs, and outputs of which the op writes only a part if earlier ops have written
  // to them. `Kept` returns the inputs that the op does not write.
  std::span<const TensorId> Needed(OpId op) const { return List(At(op).needed, At(op).kept); }
  std::span<const TensorId> Kept(OpId op) const { return List(At(op).kept, At(op).end_kept); }

  uint32_t slots(OpId op) const { return At(op).end_slot - At(op).first_slot; }
  // Returns the candidates of a slot on the op's whole batch, fastest first.
  std::span<const Kernel> kernels(OpId op, size_t slot) const {
    return kernels_[At(op).first_slot + slot];
  }

 private:
  struct Entry {
    int64_t batch = 1;
    Bytes traffic;
    // Operands are operands_[inputs, outputs) for inputs, [outputs, scratch) for outputs, and
    // [scratch, end) for scratch tensors.
    uint32_t inputs = 0, outputs = 0, scratch = 0, end = 0;
    uint32_t needed = 0, kept = 0, end_kept = 0;  // indices into listed_
    uint32_t first_slot = 0, end_slot = 0;        // indices into kernels_
    OpType type = OpType::kOther;
    Arithmetic arithmetic = Arithmetic::kFp32;  // of its first slot
    bool collective = false;
  };

  const Entry& At(OpId op) const { return entries_[Index(op)]; }
  std::span<const Touched> Part(uint32_t begin, uint32_t end) const {
    return std::span(operands_).subspan(begin, end - begin);
  }
  std::span<const TensorId> List(uint32_t begin, uint32_t end) const {
    return std::span(listed_).subspan(begin, end - begin);
  }

  std::vector<Entry> entries_;
  std::vector<Touched> operands_;
  std::vector<TensorId> listed_;
  std::vector<std::span<const Kernel>> kernels_;
};

}  // namespace spillway::sim

#endif  // SPILLWAY_SIM_RUNTIME_OP_FACTS_H_
