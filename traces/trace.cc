#include "traces/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "sim/core/error.h"

namespace spillway {
namespace {

constexpr std::array<std::string_view, 7> kTensorKindNames{
    "input",           "parameter", "activation", "gradient", "parameter_gradient",
    "optimizer_state", "scratch"};
constexpr std::array<std::string_view, 15> kOpTypeNames{
    "input",   "conv2d", "linear", "maxpool2d", "avgpool2d",    "relu", "lrn",  "batchnorm",
    "dropout", "concat", "add",    "fork",      "softmax_loss", "sgd",  "other"};
constexpr std::array<std::string_view, 3> kPhaseNames{"forward", "backward", "update"};

template <typename Enum, size_t kSize>
std::optional<Enum> ParseEnum(const std::array<std::string_view, kSize>& names,
                              std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

// True for tensors that hold data before the first op runs.
bool StartsWritten(TensorKind kind) {
  return kind == TensorKind::kInput || kind == TensorKind::kParameter ||
         kind == TensorKind::kOptimizerState || kind == TensorKind::kScratch;
}

// Walks the trace once and throws at the first violation.
class Validator {
 public:
  explicit Validator(const Trace& trace) : trace_(trace) {}

  void Run() {
    if (trace_.batch < 1) Fail(fmt::format("batch is {}, expected at least 1", trace_.batch));
    for (const Tensor& tensor : trace_.tensors) CheckTensor(tensor);
    for (const Tensor& tensor : trace_.tensors) CheckAlias(tensor);
    written_.resize(trace_.tensors.size());
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      if (StartsWritten(trace_.tensors[i].kind)) MarkWritten(static_cast<TensorId>(i));
    }
    names_.clear();
    for (const Op& op : trace_.ops) CheckOp(op);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw InputError(fmt::format("trace '{}': {}", trace_.name, what));
  }

  void MarkWritten(TensorId id) { written_[Index(trace_.Root(id))] = true; }

  void CheckTensor(const Tensor& tensor) {
    if (tensor.name.empty()) Fail(fmt::format("tensor {} has no name", names_.size()));
    if (!names_.insert(tensor.name).second) Fail(fmt::format("duplicate tensor '{}'", tensor.name));
    if (tensor.size < Bytes(0)) {
      Fail(fmt::format("tensor '{}' has the negative size {}", tensor.name, tensor.size.count()));
    }
    if (tensor.size > Bytes::Unlimited())
      Fail(fmt::format("tensor '{}' is too large", tensor.name));
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) Fail(fmt::format("tensor '{}' has a negative extent", tensor.name));
    }
    if (tensor.alias_of && Index(*tensor.alias_of) >= trace_.tensors.size()) {
      Fail(fmt::format("tensor '{}' aliases a tensor that does not exist", tensor.name));
    }
  }

  void CheckAlias(const Tensor& tensor) const {
    if (!tensor.alias_of) return;
    const Tensor* root = &tensor;
    for (size_t hops = 0; root->alias_of; ++hops) {
      if (hops > trace_.tensors.size()) {
        Fail(fmt::format("tensor '{}' is in a cycle of aliases", tensor.name));
      }
      root = &trace_.tensor(*root->alias_of);
    }
    if (tensor.size > root->size) {
      Fail(fmt::format("tensor '{}' is larger than '{}', whose storage it shares", tensor.name,
                       root->name));
    }
  }

  void CheckOp(const Op& op) {
    if (op.name.empty()) Fail(fmt::format("op {} has no name", names_.size()));
    if (!names_.insert(op.name).second) Fail(fmt::format("duplicate op '{}'", op.name));
    if (Index(op.layer) >= trace_.layers.size()) {
      Fail(fmt::format("op '{}' names layer {}, of {}", op.name, Index(op.layer),
                       trace_.layers.size()));
    }
    if (op.batch < 1) Fail(fmt::format("op '{}' has batch {}", op.name, op.batch));
    if (op.slots.empty()) Fail(fmt::format("op '{}' has no slots", op.name));
    if (op.recomputable && op.phase != Phase::kForward) {
      Fail(fmt::format("op '{}' is recomputable but not a forward op", op.name));
    }
    for (const Slot& slot : op.slots) {
      if (slot.flops < 0 || slot.traffic < Bytes(0)) {
        Fail(fmt::format("op '{}', slot '{}': negative flops or traffic", op.name, slot.name));
      }
    }
    for (const auto* list : {&op.inputs, &op.outputs, &op.scratch}) {
      for (const TensorId id : *list) {
        if (Index(id) >= trace_.tensors.size()) {
          Fail(fmt::format("op '{}' names tensor {}, of {}", op.name, Index(id),
                           trace_.tensors.size()));
        }
      }
    }
    for (const TensorId id : op.inputs) {
      if (!written_[Index(trace_.Root(id))]) {
        Fail(fmt::format("op '{}' reads tensor '{}' before any op has written it", op.name,
                         trace_.tensor(id).name));
      }
    }
    for (const TensorId id : op.scratch) {
      if (trace_.tensor(trace_.Root(id)).kind != TensorKind::kScratch) {
        Fail(fmt::format("op '{}' lists tensor '{}' as scratch, but its kind is {}", op.name,
                         trace_.tensor(id).name, Name(trace_.tensor(id).kind)));
      }
    }
    for (const TensorId id : op.outputs) MarkWritten(id);
  }

  const Trace& trace_;
  std::unordered_set<std::string_view> names_;
  std::vector<bool> written_;  // per storage
};

}  // namespace

std::string_view Name(TensorKind kind) { return kTensorKindNames[static_cast<size_t>(kind)]; }
std::string_view Name(OpType type) { return kOpTypeNames[static_cast<size_t>(type)]; }
std::string_view Name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

std::optional<TensorKind> ParseTensorKind(std::string_view name) {
  return ParseEnum<TensorKind>(kTensorKindNames, name);
}
std::optional<OpType> ParseOpType(std::string_view name) {
  return ParseEnum<OpType>(kOpTypeNames, name);
}
std::optional<Phase> ParsePhase(std::string_view name) {
  return ParseEnum<Phase>(kPhaseNames, name);
}

int64_t Op::flops() const {
  int64_t total = 0;
  for (const Slot& slot : slots) total += slot.flops;
  return total;
}

Bytes Op::traffic() const {
  Bytes total;
  for (const Slot& slot : slots) total += slot.traffic;
  return total;
}

std::optional<double> Op::FindAttribute(std::string_view attribute) const {
  for (const Attribute& entry : attributes) {
    if (entry.name == attribute) return entry.value;
  }
  return std::nullopt;
}

int64_t Op::IntAttribute(std::string_view attribute) const {
  const std::optional<double> value = FindAttribute(attribute);
  if (!value) {
    throw InputError(
        fmt::format("op '{}' ({}) lacks the attribute '{}'", name, Name(type), attribute));
  }
  return static_cast<int64_t>(*value);
}

TensorId Trace::Root(TensorId id) const {
  while (tensor(id).alias_of) id = *tensor(id).alias_of;
  return id;
}

void Trace::Validate() const { Validator(*this).Run(); }

}  // namespace spillway
