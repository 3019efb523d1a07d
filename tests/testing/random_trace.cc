#include "tests/testing/random_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace spillway::testing {
namespace {

constexpr std::array<int64_t, 8> kSizes{4, 36, 0, 256, 1000, 4096, 20000, 65536};

Bytes SizeOf(unsigned number) { return Bytes(kSizes[number % kSizes.size()]); }

class Maker {
 public:
  explicit Maker(const TraceSpec& spec) {
    trace_.name = trace_.network = "random";
    trace_.preset = "test";
    // Every trace has at least one tensor to read.
    Add("x", TensorKind::kInput, Bytes(36), std::nullopt);
    constexpr std::array kKinds{TensorKind::kParameter, TensorKind::kInput,
                                TensorKind::kOptimizerState};
    for (const uint8_t number : spec.given) {
      Add("g", kKinds[number % kKinds.size()], SizeOf(number / kKinds.size()), std::nullopt);
    }
    for (const OpSpec& op : spec.ops) AddOp(op);
  }

  Trace Take() {
    trace_.Validate();
    return std::move(trace_);
  }

 private:
  TensorId Add(std::string_view prefix, TensorKind kind, Bytes size,
               std::optional<TensorId> alias_of) {
    const auto id = static_cast<TensorId>(trace_.tensors.size());
    trace_.tensors.push_back({fmt::format("{}{}", prefix, trace_.tensors.size()),
                              kind,
                              {size.count() / 4},
                              size,
                              alias_of});
    if (kind != TensorKind::kScratch) readable_.push_back(id);
    return id;
  }

  // Returns the readable tensor added `back` tensors before the last one; the count wraps around.
  TensorId Recent(size_t back) const {
    return readable_[readable_.size() - 1 - back % readable_.size()];
  }

  void AddOp(const OpSpec& spec) {
    constexpr std::array kPhases{Phase::kForward, Phase::kForward,  Phase::kForward,
                                 Phase::kForward, Phase::kBackward, Phase::kUpdate};
    Op op;
    op.name = fmt::format("op{}", trace_.ops.size());
    op.layer = static_cast<LayerId>(trace_.layers.size());
    trace_.layers.push_back({op.name, OpType::kOther});
    op.phase = kPhases[spec[0] % kPhases.size()];
    op.recomputable = spec[0] % kPhases.size() < 3;
    for (size_t i = 1; i <= 3; ++i) {
      if (spec[i] > 0) AddInput(spec[i], op);
    }
    AddOutput(spec[4], op);
    if (spec[5] > 0) AddOutput(static_cast<uint8_t>(spec[5] - 1), op);
    const unsigned extra = spec[6];
    if (extra % 4 == 1 || (extra % 4 == 2 && scratch_.empty())) {
      scratch_.push_back(Add("s", TensorKind::kScratch, SizeOf(extra / 4), std::nullopt));
    }
    if (extra % 4 == 1 || extra % 4 == 2) op.scratch.push_back(scratch_.back());
    op.batch = 1 + extra / 4 % 3;
    op.slots.push_back({"run", fmt::format("kernels{}", extra / 12 % 4), 0, Bytes(0)});
    trace_.ops.push_back(std::move(op));
  }

  void AddInput(uint8_t number, Op& op) {
    TensorId id = Recent(number % 128 - (number < 128 ? 1 : 0));
    if (number >= 128) {
      const Tensor& whole = trace_.tensor(id);
      const Bytes half(whole.size.count() / 8 * 4);
      id = Add("v", whole.kind, half, id);
    }
    op.inputs.push_back(id);
  }

  void AddOutput(uint8_t number, Op& op) {
    const TensorKind kind =
        op.phase == Phase::kForward ? TensorKind::kActivation : TensorKind::kGradient;
    // 0 to 9: a new tensor; 10 to 12: the first input, in place; 13 to 15: an older storage.
    const unsigned how = number % 16, what = number / 16;
    std::optional<TensorId> target;
    if (how >= 10 && how <= 12 && !op.inputs.empty()) {
      target = op.inputs.front();
    } else if (how >= 13) {
      target = trace_.Root(Recent(what));
    }
    if (target && Writes(op, *target)) return;
    if (!target) {
      target = Add("t", kind, SizeOf(what), std::nullopt);
    } else if (how == 12 || how == 15) {
      target = Add("a", kind, trace_.tensor(*target).size, *target);
    }
    op.outputs.push_back(*target);
  }

  bool Writes(const Op& op, TensorId id) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(),
                       [&](TensorId output) { return trace_.Root(output) == trace_.Root(id); });
  }

  Trace trace_;
  std::vector<TensorId> readable_;
  std::vector<TensorId> scratch_;
};

}  // namespace

Trace MakeTrace(const TraceSpec& spec) { return Maker(spec).Take(); }

FixedCost MakeCost() {
  const auto kernel = [](const char* name, int64_t time, int64_t workspace) {
    return Kernel{name, Duration::Nanoseconds(time), Bytes(workspace), true};
  };
  FixedCost cost;
  cost.Set("kernels1", {kernel("fast", 500, 4096), kernel("slow", 2000, 0)});
  cost.Set("kernels2", {kernel("only", 1000, 100)});
  cost.Set("kernels3", {kernel("a", 10, 70000), kernel("b", 20, 512), kernel("c", 3000, 4)});
  return cost;
}

std::string Describe(const Trace& trace) {
  std::string text;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    text += fmt::format("  {} {} {} bytes{}\n", tensor.name, Name(tensor.kind), tensor.size.count(),
                        tensor.alias_of ? " in " + trace.tensor(*tensor.alias_of).name : "");
  }
  const auto list = [&](std::string_view what, const std::vector<TensorId>& tensors) {
    if (tensors.empty()) return;
    text += fmt::format(" {}", what);
    for (const TensorId id : tensors) text += " " + trace.tensor(id).name;
  };
  for (const Op& op : trace.ops) {
    text += fmt::format("  {} {}{}", op.name, Name(op.phase), op.recomputable ? " again" : "");
    list("reads", op.inputs);
    list("writes", op.outputs);
    list("scratch", op.scratch);
    text += fmt::format(" ({}, batch {})\n", op.slots.front().signature, op.batch);
  }
  return text;
}

}  // namespace spillway::testing
