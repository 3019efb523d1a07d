// What the runtime asks of each op in every iteration, side by side in memory.
//
// A `Trace` is made to be read by people and by many tools; walking it once per iteration would
// touch far more memory than is needed. Immutable, and a function of trace and cost model alone:
// runs of one trace share it.

#ifndef SPILLWAY_SIM_RUNTIME_OP_FACTS_H_
#define SPILLWAY_SIM_RUNTIME_OP_FACTS_H_

#include <span>
#include <vector>

#include "sim/core/cost_model.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway {

// A storage that an op reads or writes (touches), and which bytes of it.
struct Touched {
  TensorId storage{};
  Bytes offset;
  Bytes size;
};

class OpTable {
 public:
  // Throws `InputError` if the cost model lacks an entry, and one that names the op with which the
  // slowest kernels add up to more than `kLongestIteration`. The model outlives the table.
  OpTable(const Trace& trace, const Liveness& liveness, const CostModel& cost);

  int64_t batch(OpId op) const { return At(op).batch; }
  Bytes traffic(OpId op) const { return At(op).traffic; }
  OpType type(OpId op) const { return At(op).type; }
  std::span<const Touched> Inputs(OpId op) const { return Part(At(op).inputs, At(op).outputs); }
  std::span<const Touched> Outputs(OpId op) const { return Part(At(op).outputs, At(op).scratch); }
  std::span<const Touched> Scratch(OpId op) const { return Part(At(op).scratch, At(op).end); }
  // Outputs, then scratch.
  std::span<const Touched> Written(OpId op) const { return Part(At(op).outputs, At(op).end); }

  // The inputs, each storage once, in the op's order: all, with what it writes a part of if there
  // is something in it, and those that it does not write.
  std::span<const TensorId> Needed(OpId op) const { return List(At(op).needed, At(op).kept); }
  std::span<const TensorId> Kept(OpId op) const { return List(At(op).kept, At(op).end_kept); }

  uint32_t slots(OpId op) const { return At(op).end_slot - At(op).first_slot; }
  // The candidates of a slot on the op's whole batch, fastest first.
  std::span<const Kernel> kernels(OpId op, size_t slot) const {
    return kernels_[At(op).first_slot + slot];
  }

 private:
  struct Entry {
    int64_t batch = 1;
    Bytes traffic;
    // Operands are operands_[inputs, outputs), then outputs until scratch, then scratch until end.
    uint32_t inputs = 0, outputs = 0, scratch = 0, end = 0;
    uint32_t needed = 0, kept = 0, end_kept = 0;  // in listed_
    uint32_t first_slot = 0, end_slot = 0;        // in kernels_
    OpType type = OpType::kOther;
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

}  // namespace spillway

#endif  // SPILLWAY_SIM_RUNTIME_OP_FACTS_H_
