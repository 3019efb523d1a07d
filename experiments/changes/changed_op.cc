#include "experiments/changes/changed_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "policies/recorded/pytorch_plans.h"

namespace spillway::lab {

int64_t Elements(const Tensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies());
}

bool IsFp32(const Tensor& tensor) {
  return tensor.dtype == DataType::kFloat32 && tensor.size.count() == 4 * Elements(tensor);
}

bool IsInFp32(const Trace& trace) {
  const auto is_short = [](const Tensor& tensor) {
    return tensor.dtype == DataType::kBfloat16 || tensor.dtype == DataType::kFloat16;
  };
  const auto is_long = [](const Tensor& tensor) {
    return tensor.kind == TensorKind::kParameter && IsFp32(tensor);
  };
  return std::ranges::none_of(trace.tensors, is_short) &&
         std::ranges::any_of(trace.tensors, is_long);
}

bool HasUnfusedAttention(const Trace& trace) {
  return std::ranges::any_of(trace.ops,
                             [](const Op& op) { return OperatorOf(op) == "aten::_safe_softmax"; });
}

void Halve(Tensor& tensor) {
  tensor.size = Bytes(tensor.size.count() / 2);
  tensor.offset = Bytes(tensor.offset.count() / 2);
  if (tensor.dtype == DataType::kFloat32) tensor.dtype = DataType::kBfloat16;
}

std::string_view OperatorOf(const Op& op) {
  const std::string_view signature = op.slots[0].signature;
  return signature.substr(0, signature.find(' '));
}

void ForgetRecorded(Trace& trace) {
  Recording& recording = *trace.recording;
  trace.saved.clear();
  trace.compiled.clear();
  recording.step = recording.plain_step = {};
  recording.allocated = recording.reserved = {};
}

void ForgetTensor(Tensor& tensor) {
  tensor.kind = TensorKind::kScratch;
  tensor.size = tensor.offset = Bytes();
  tensor.held_until.reset();
}

Op NewOp(std::string name, const std::string& signature, const Op& near, Duration time) {
  Op op;
  op.name = std::move(name);
  op.layer = near.layer;
  op.phase = near.phase;
  op.batch = near.batch;
  op.slots = {{"op", signature, 0, Bytes()}};
  op.recorded = {time, Duration(), near.recorded->host, Bytes()};
  return op;
}

NewNames::NewNames(const Trace& trace) {
  for (const Tensor& tensor : trace.tensors) taken_.insert(tensor.name);
  for (const Op& op : trace.ops) taken_.insert(op.name);
}

std::string NewNames::Of(const std::string& wanted) {
  std::string name = wanted;
  for (int number = 1; !taken_.insert(name).second; ++number) {
    name = fmt::format("{}.{}", wanted, number);
  }
  return name;
}

void HalvedWork::Lower(int64_t bytes, int64_t halved, Op& op) const {
  if (halved <= 0) return;
  const Op whole = op;
  Slot& slot = op.slots[0];
  const auto saved = static_cast<Int128>(slot.traffic.count()) * halved / (2 * Int128{bytes});
  slot.traffic -= Bytes(static_cast<int64_t>(saved));
  if (IsCostly(op) && slot.arithmetic <= Arithmetic::kTf32) slot.arithmetic = Arithmetic::kBf16;
  if (op.recorded->time > Duration()) ScaleTime(whole, op);
}

// Sets the measured time of `half` so that it takes as much less than `whole` as the roofline says.
// The times of the cost model are proportional to the measured ones.
void HalvedWork::ScaleTime(const Op& whole, Op& half) const {
  const auto time = [](const CostModel& model, const Op& op) {
    return static_cast<double>(model.Kernels(op, 0, op.batch)[0].time.picoseconds());
  };
  const double wanted = time(cost_, whole) * time(roofline_, half) / time(roofline_, whole);
  const double measured = static_cast<double>(whole.recorded->time.picoseconds());
  half.recorded->time =
      Duration::Picoseconds(std::llround(measured * wanted / std::max(1.0, time(cost_, half))));
}

}  // namespace spillway::lab
