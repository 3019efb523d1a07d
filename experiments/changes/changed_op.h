// Parts of a trace of a changed step: new ops, and ops on numbers of fewer bytes.

#ifndef SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_OP_H_
#define SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_OP_H_

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "sim/core/cost_model.h"
#include "sim/core/device.h"
#include "sim/cost/roofline.h"
#include "traces/liveness.h"
#include "traces/trace.h"

namespace spillway::lab {

// Returns the number of elements of the tensor.
int64_t Elements(const Tensor& tensor);
// Returns true for the kinds of tensors that live across iterations.
inline bool IsPersistent(TensorKind kind) {
  return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState;
}
// Returns true iff the tensor has elements of fp32, and no gaps between them.
bool IsFp32(const Tensor& tensor);
// Returns true iff the trace has a parameter in fp32 and no values of 16 bits.
bool IsInFp32(const Trace& trace);
// Returns true iff PyTorch took attention apart, for which no fused kernel of fp32 exists. One
// operator does all of it in bf16.
bool HasUnfusedAttention(const Trace& trace);
// Says why such a step is not predicted in bf16.
inline constexpr const char* kUnfusedAttention =
    "attention runs in several operators in fp32, and in one in bf16; record the step in bf16";
// Makes the tensor one of bf16. REQUIRES: it has elements of 4 bytes.
void Halve(Tensor& tensor);

// Returns "aten::mm" for an op whose signature is "aten::mm 4x4".
std::string_view OperatorOf(const Op& op);

// Forgets what the recording says of the whole step, which runs other ops now. A trace with hooks
// keeps what autograd saved (`MovePositions`).
void ForgetRecorded(Trace& trace);

// Corrects what autograd saved, and its hooks, in a trace whose ops come from another one, and that
// still has the positions of that trace. places: by op of that trace, where it or what stands for
// it is now.
void MovePositions(std::span<const OpId> places, Trace& trace);

// Takes a tensor that no op uses any longer out of the trace's memory.
void ForgetTensor(Tensor& tensor);
// The same for a storage and its views.
void ForgetStorage(TensorId storage, const Liveness& liveness, Trace& trace);

// Returns an op without operands that runs beside `near` and takes `time`. It has no traffic, so
// that a recording of another GPU does not scale its time.
Op NewOp(std::string name, const std::string& signature, const Op& near, Duration time);

// Makes names that no tensor and no op of a trace has.
class NewNames {
 public:
  explicit NewNames(const Trace& trace);

  // Returns the name, with a number behind it if it is taken.
  std::string Of(const std::string& wanted);

 private:
  std::set<std::string> taken_;
};

// Lowers the work of ops some of whose operands become half as large.
class HalvedWork {
 public:
  // `cost` has times for the recorded ops. Both arguments outlive this object.
  HalvedWork(const Device& device, const CostModel& cost)
      : cost_(cost), roofline_(device), dram_(device.dram) {}

  // `halved` of the `bytes` of the operands of `op`, a recorded op, are bf16 instead of fp32. The
  // products get the device's rate for bf16, and measured times change as the roofline does.
  void Lower(int64_t bytes, int64_t halved, Op& op) const;

  // Returns how long it takes to read and write that many bytes.
  Duration TimeOf(Bytes traffic) const { return TransferTime(traffic, dram_); }

 private:
  void ScaleTime(const Op& whole, Op& half) const;

  const CostModel& cost_;
  const RooflineCostModel roofline_;
  const Bandwidth dram_;
};

}  // namespace spillway::lab

#endif  // SPILLWAY_EXPERIMENTS_CHANGES_CHANGED_OP_H_
