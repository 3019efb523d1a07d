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
  if (!trace.hooks) trace.saved.clear();
  trace.compiled.clear();
  recording.step = recording.plain_step = {};
  recording.allocated = recording.reserved = {};
}

void MovePositions(std::span<const OpId> places, Trace& trace) {
  const auto moved = [&](uint32_t at) {
    return static_cast<uint32_t>(at < places.size() ? Index(places[at]) : trace.ops.size());
  };
  std::set<std::pair<uint32_t, TensorId>> packed;
  std::erase_if(trace.saved, [&](KeptForBackward& kept) {
    kept.packed = moved(kept.packed);
    for (uint32_t& at : kept.unpacked) at = std::max(moved(at), kept.packed);
    std::ranges::sort(kept.unpacked);
    kept.unpacked.erase(std::ranges::unique(kept.unpacked).begin(), kept.unpacked.end());
    return trace.tensor(kept.tensor).kind == TensorKind::kScratch ||
           !packed.emplace(kept.packed, kept.tensor).second;
  });
  std::ranges::stable_sort(trace.saved, {}, &KeptForBackward::packed);
  if (!trace.hooks) return;
  for (HookPlace& place : trace.hooks->places) place.at = moved(place.at);
  std::ranges::stable_sort(trace.hooks->places, {}, &HookPlace::at);
}

void ForgetTensor(Tensor& tensor) {
  tensor.kind = TensorKind::kScratch;
  tensor.size = tensor.offset = Bytes();
  tensor.held_until.reset();
}

void ForgetStorage(TensorId storage, const Liveness& liveness, Trace& trace) {
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (liveness.Root(static_cast<TensorId>(i)) == storage) ForgetTensor(trace.tensors[i]);
  }
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
