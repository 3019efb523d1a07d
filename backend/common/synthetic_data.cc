#include "backend/common/synthetic_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/common/bfloat16.h"
#include "traces/base/counter_random.h"
#include "traces/ops/op_table.h"

namespace spillway::backend {
namespace {

// Returns a key that differs for each combination of seed, tensor and iteration.
uint64_t KeyOf(uint64_t seed, TensorId tensor, uint64_t iteration) {
  const Philox4 mixed =
      Philox(seed, static_cast<uint32_t>(Index(tensor)), static_cast<uint32_t>(iteration),
             static_cast<uint32_t>(iteration >> 32), /*c3=*/1);
  return (uint64_t{mixed.word[0]} << 32) | mixed.word[1];
}

// Returns the tensor that has the data of all parts and views among which the tensor is.
TensorId WholeOf(const Trace& trace, TensorId id) {
  const TensorId storage = trace.Root(id);
  return trace.tensor(storage).part_of.value_or(storage);
}

}  // namespace

SyntheticSource::SyntheticSource(const Trace& trace, uint64_t seed) : trace_(trace), seed_(seed) {
  for (const Op& op : trace.ops) {
    for (const Role role : {Role::kWeight, Role::kRunningVar}) {
      const auto id = FindInput(op, role);
      if (id && trace.tensor(*id).shape.size() == 1) scales_.insert(WholeOf(trace, *id));
    }
    for (size_t part = 0; op.Flag("master"); ++part) {
      const size_t parameter = InputIndex(op, Role::kParameter, part).value();
      if (parameter >= op.inputs.size()) break;
      copied_.try_emplace(op.inputs.at(InputIndex(op, Role::kMaster, part).value()),
                          op.inputs[parameter]);
    }
    if (const auto id = FindInput(op, Role::kIndices)) {
      classes_.try_emplace(WholeOf(trace, *id),
                           static_cast<int32_t>(op.IntAttribute("vocabulary")));
    }
    if (const auto id = FindInput(op, Role::kLabels)) {
      classes_.try_emplace(WholeOf(trace, *id), static_cast<int32_t>(op.IntAttribute("elements")));
    }
  }
}

SyntheticData SyntheticSource::Of(TensorId id, uint64_t iteration) const {
  id = WholeOf(trace_, id);
  if (const auto copied = copied_.find(id); copied != copied_.end()) {
    SyntheticData data = Of(copied->second, iteration);
    data.bf16 = false;
    return data;
  }
  const Tensor& tensor = trace_.tensor(id);
  const bool bf16 = tensor.dtype == DataType::kBfloat16;
  if (tensor.kind == TensorKind::kOptimizerState) {
    if (!scales_.contains(id)) return {};
    return {DataKind::kUniform, 0, 0, /*centre=*/1, 0, bf16};
  }
  if (tensor.kind == TensorKind::kParameter) {
    int64_t fan_in = 1;
    for (size_t i = 1; i < tensor.shape.size(); ++i) fan_in *= tensor.shape[i];
    const bool is_weight = tensor.shape.size() > 1;
    const float scale = is_weight ? std::sqrt(3.0f / static_cast<float>(fan_in)) : 0.1f;
    const float centre = scales_.contains(id) ? 1.0f : 0.0f;
    return {DataKind::kUniform, KeyOf(seed_, id, 0), scale, centre, 0, bf16};
  }
  const uint64_t key = KeyOf(seed_, id, iteration + 1);
  if (const auto labels = classes_.find(id); labels != classes_.end()) {
    return {DataKind::kLabels, key, 0, 0, labels->second};
  }
  return {DataKind::kUniform, key, 1, 0, 0, bf16};
}

int64_t FirstElement(const Tensor& tensor) {
  return tensor.part_of ? tensor.offset.count() / ElementSize(tensor.dtype) : 0;
}

void Fill(const SyntheticData& data, std::span<std::byte> bytes, int64_t first) {
  static_assert(sizeof(float) == sizeof(int32_t));
  if (data.kind == DataKind::kZero) {
    std::memset(bytes.data(), 0, bytes.size());
    return;
  }
  const size_t size = data.bf16 ? sizeof(uint16_t) : sizeof(float);
  const auto count = static_cast<int64_t>(bytes.size() / size);
  for (int64_t i = 0; i < count; ++i) {
    std::byte* element = bytes.data() + static_cast<size_t>(i) * size;
    if (data.kind == DataKind::kUniform) {
      const float value = data.centre + RandomFloat(data.seed, first + i, data.scale);
      const uint16_t rounded = RoundToBfloat16(value);
      std::memcpy(element, data.bf16 ? static_cast<const void*>(&rounded) : &value, size);
    } else {
      const int32_t label = RandomLabel(data.seed, first + i, data.classes);
      std::memcpy(element, &label, sizeof(label));
    }
  }
}

}  // namespace spillway::backend
