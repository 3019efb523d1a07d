#include "traces/lowering/lowered_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "traces/base/error.h"

namespace spillway::traces {
namespace {

// Throws `InputError` if the tensor would have more than 2^56 elements.
int64_t ElementsOf(std::string_view tensor, const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product) || product > kMost) {
      throw InputError(fmt::format("tensor '{}' of {} has more than 2^56 elements", tensor,
                                   fmt::join(shape, "x")));
    }
  }
  return product;
}

// Returns the operations of the whole batch. A number that is too large for a trace stays so.
int64_t Flops(const Op& op, const OpSlot& slot) {
  int64_t flops = 0;
  const bool overflows = __builtin_mul_overflow(op.batch, slot.flops(op), &flops);
  return overflows ? int64_t{1} << 61 : flops;
}

}  // namespace

LoweredTrace::LoweredTrace(Trace header, Arithmetic arithmetic, int64_t micro_batches)
    : trace_(std::move(header)), arithmetic_(arithmetic), micro_batches_(micro_batches) {}

Trace LoweredTrace::Take() {
  trace_.Validate();
  return std::move(trace_);
}

int64_t LoweredTrace::Elements(TensorId id) const {
  return ElementsOf(tensor(id).name, tensor(id).shape);
}

TensorId LoweredTrace::AddTensor(std::string name, TensorKind kind, std::vector<int64_t> shape,
                                 DataType dtype, std::optional<TensorId> alias_of) {
  const Bytes size(ElementsOf(name, shape) * ElementSize(dtype));
  if (alias_of && tensor(*alias_of).size != size) alias_of = std::nullopt;
  const auto id = static_cast<TensorId>(trace_.tensors.size());
  trace_.tensors.push_back({std::move(name), kind, std::move(shape), size, alias_of});
  trace_.tensors.back().dtype = dtype;
  roots_.push_back(alias_of ? roots_[Index(*alias_of)] : id);
  return id;
}

TensorId LoweredTrace::AddInput(const std::string& name, const std::string& suffix,
                                std::vector<int64_t> shape, DataType dtype) {
  if (micro_batches_ == 1) return AddTensor(name, TensorKind::kInput, std::move(shape), dtype);
  const auto [known, is_new] = inputs_.try_emplace(name);
  WholeInput& whole = known->second;
  if (is_new) {
    std::vector<int64_t> of_all = shape;
    of_all.front() *= micro_batches_;
    whole.tensor = AddTensor(name, TensorKind::kInput, std::move(of_all), dtype);
  }
  const TensorId part = AddTensor(name + suffix, TensorKind::kInput, std::move(shape), dtype);
  trace_.tensors[Index(part)].part_of = whole.tensor;
  trace_.tensors[Index(part)].offset = whole.taken;
  whole.taken += tensor(part).size;
  return part;
}

TensorId LoweredTrace::AddView(TensorId id, int64_t first, int64_t count, std::string_view suffix) {
  const Tensor whole = tensor(id);
  const int64_t tokens = whole.shape.at(0) * whole.shape.at(1);
  std::vector<int64_t> shape = whole.shape;
  shape[0] = count;
  shape[1] = 1;
  const TensorId view =
      AddTensor(fmt::format("{}{}", whole.name, suffix), whole.kind, std::move(shape), whole.dtype);
  trace_.tensors[Index(view)].alias_of = id;
  trace_.tensors[Index(view)].offset = Bytes(whole.size.count() / tokens * first);
  roots_[Index(view)] = roots_[Index(id)];
  return view;
}

LayerId LoweredTrace::AddLayer(std::string name, OpType type) {
  trace_.layers.push_back({std::move(name), type});
  return static_cast<LayerId>(trace_.layers.size() - 1);
}

Op LoweredTrace::MakeOp(LayerId layer, Phase phase, int64_t batch, std::string_view suffix,
                        std::vector<Attribute> attributes) const {
  Op op;
  op.name = fmt::format("{}.{}", trace_.layer(layer).name, suffix);
  op.layer = layer;
  op.type = trace_.layer(layer).type;
  op.phase = phase;
  op.batch = batch;
  op.attributes = std::move(attributes);
  op.recomputable = phase == Phase::kForward;
  return op;
}

Op& LoweredTrace::AddOp(Op op) {
  for (const OpSlot& slot : StepOf(op).slots) {
    if (!slot.name.empty() && Holds(op, slot.when)) op.slots.push_back(MakeSlot(op, slot));
  }
  return trace_.ops.emplace_back(std::move(op));
}

Slot LoweredTrace::MakeSlot(const Op& op, const OpSlot& slot) const {
  Slot made;
  made.name = slot.name;
  made.signature = SignatureOf(op, slot);
  if (slot.flops != nullptr) {
    made.flops = Flops(op, slot);
    made.traffic = OperandTraffic(op);
  } else {
    const int64_t copies = Copies(op);
    const auto added_to = static_cast<int64_t>(op.inputs.size()) - 1;
    if (copies > 0) made.traffic = tensor(op.inputs.front()).size * (1 + copies + added_to);
    made.signature += fmt::format(" copies={}", copies);
  }
  made.signature += PrecisionOf(op);
  if (RowOf(op.type).products) made.arithmetic = arithmetic_;
  return made;
}

Bytes LoweredTrace::OperandTraffic(const Op& op) const {
  Bytes traffic;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *list) traffic += tensor(id).size;
  }
  if (RowOf(op.type).gathers && op.phase == Phase::kForward) {
    const Bytes table = tensor(FindInput(op, Role::kWeight).value()).size;
    traffic += std::min(table, tensor(op.outputs.front()).size) - table;
  }
  return traffic;
}

int64_t LoweredTrace::Copies(const Op& op) const {
  return std::ranges::count_if(op.outputs, [&](TensorId output) {
    return roots_[Index(output)] != roots_[Index(op.inputs.front())];
  });
}

std::string LoweredTrace::PrecisionOf(const Op& op) const {
  const bool in_bf16 = arithmetic_ == Arithmetic::kBf16;
  const bool in_tf32 = arithmetic_ == Arithmetic::kTf32 && RowOf(op.type).products;
  std::string precision;
  if (in_bf16 || in_tf32) precision += fmt::format(" {}", Name(arithmetic_));
  if (in_bf16) {  // kernels convert what is not bfloat16
    const auto is_fp32 = [&](TensorId id) { return tensor(id).dtype == DataType::kFloat32; };
    if (is_fp32(op.inputs.front())) precision += " reads=fp32";
    if (is_fp32(op.outputs.front())) precision += " writes=fp32";
  }
  return precision;
}

}  // namespace spillway::traces
