#include "tests/testing/fixtures.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/alloc/best_fit.h"
#include "sim/core/check.h"
#include "sim/engine/sim_backend.h"
#include "traces/base/error.h"

namespace spillway::testing {

Device RoundDevice() {
  constexpr int64_t kGiga = 1'000'000'000;
  Device device;
  device.name = "round";
  device.description = "round numbers";
  device.memory = Bytes::Unlimited();
  device.alignment = Bytes(1);
  device.host_memory = Bytes::GiB(64);
  device.flops_per_second = kGiga;
  device.dram = {1000 * kGiga};
  device.h2d = {{kGiga}, Duration()};
  device.d2h = {{kGiga}, Duration()};
  device.duplex = {2 * kGiga};
  return device;
}

Device DeviceWithPeer(Bytes size) {
  Device device = RoundDevice();
  ExternalPool peer;
  peer.size = size;
  peer.in = peer.out = {{2'000'000'000}, Duration()};
  peer.duplex = {4'000'000'000};
  device.pools = {peer};
  return device;
}

FixedCost::FixedCost(Duration time) : default_{{"default", time, Bytes(0), true}} {}

void FixedCost::Set(const std::string& signature, std::vector<Kernel> kernels) {
  kernels_[signature] = std::move(kernels);
}

std::span<const Kernel> FixedCost::Kernels(const Op& op, size_t slot, int64_t) const {
  const auto found = kernels_.find(op.slots[slot].signature);
  return found == kernels_.end() ? default_ : found->second;
}

Duration FixedCost::CopyTime(Direction, Bytes size) const {
  return Duration::Nanoseconds(size.count());
}

TraceBuilder::TraceBuilder() {
  trace_.name = "test:1";
  trace_.network = "test";
  trace_.preset = "test";
}

TensorId TraceBuilder::Id(const std::string& name) const {
  for (size_t i = 0; i < trace_.tensors.size(); ++i) {
    if (trace_.tensors[i].name == name) return static_cast<TensorId>(i);
  }
  throw InputError("no tensor " + name);
}

TraceBuilder& TraceBuilder::Tensor(const std::string& name, TensorKind kind, int64_t bytes,
                                   const std::string& alias_of) {
  traces::Tensor tensor{name, kind, {bytes}, Bytes(bytes), std::nullopt};
  if (!alias_of.empty()) tensor.alias_of = Id(alias_of);
  trace_.tensors.push_back(std::move(tensor));
  return *this;
}

TraceBuilder& TraceBuilder::Op(const std::string& name, Phase phase,
                               std::initializer_list<std::string> inputs,
                               std::initializer_list<std::string> outputs, OpType type,
                               const std::string& layer) {
  const std::string layer_name = layer.empty() ? name : layer;
  auto found = std::find_if(trace_.layers.begin(), trace_.layers.end(),
                            [&](const Layer& known) { return known.name == layer_name; });
  if (found == trace_.layers.end()) {
    trace_.layers.push_back({layer_name, type});
    found = std::prev(trace_.layers.end());
  }
  traces::Op op;
  op.name = name;
  op.layer = static_cast<LayerId>(found - trace_.layers.begin());
  op.type = type;
  op.phase = phase;
  for (const std::string& input : inputs) op.inputs.push_back(Id(input));
  for (const std::string& output : outputs) op.outputs.push_back(Id(output));
  op.slots.push_back({"run", name, 0, Bytes(0)});
  op.recomputable = phase == Phase::kForward;
  trace_.ops.push_back(std::move(op));
  return *this;
}

Trace TraceBuilder::Build() const {
  trace_.Validate();
  return trace_;
}

RunResult RunSim(const Trace& trace, const CostModel& cost, Policy& policy,
                 const RunSettings& settings) {
  Device device = settings.device;
  device.memory = settings.memory;
  const TrialRun trial([&](Policy& other, Bytes memory, const TrialOptions& options) {
    RunSettings tried = settings;
    tried.memory = memory;
    tried.options.iterations = options.iterations;
    return RunSim(trace, cost, other, tried).report;
  });
  const Preparation prepared = policy.Prepare(trace, device, cost, trial, {});
  const Trace& ran = prepared.trace ? *prepared.trace : trace;
  device.memory = prepared.memory;
  BestFit arena(device.memory, device.alignment);
  std::vector<std::unique_ptr<BestFit>> pools;
  SimBackend backend(device, cost);
  RuntimeParts parts;
  parts.trace = &ran;
  parts.device = &device;
  parts.cost = &cost;
  parts.arena = &arena;
  for (size_t i = 0; i <= device.pools.size(); ++i) {
    pools.push_back(std::make_unique<BestFit>(SizeOf(device, OutsidePool(i)), device.alignment));
    parts.pools[i] = pools.back().get();
  }
  parts.backend = &backend;
  parts.policy = &policy;
  RunResult result;
  result.report = Run(parts, settings.options);
  result.violations = Check(ran, result.report);
  return result;
}

std::string TimelineText(const Trace& trace, const Report& report) {
  const auto nanoseconds = [](Duration time) { return time.picoseconds() / 1000; };
  std::string text;
  for (const TimelineEntry& entry : report.timeline) {
    const std::string what = entry.kind == CommandKind::kKernel ? trace.op(entry.op).name
                                                                : trace.tensor(entry.tensor).name;
    text += fmt::format("{:>5} {:>5} {}{} {}\n", nanoseconds(entry.interval.start),
                        nanoseconds(entry.interval.end), Name(entry.event.stream),
                        entry.recompute ? " again" : "", what);
  }
  return text;
}

std::string DecisionText(const Trace& trace, const Report& report) {
  std::string text;
  for (const Decision& decision : report.decisions) {
    if (decision.verb == Verb::kRun) continue;
    text += fmt::format(
        "{} {}{}{}\n", trace.op(decision.op).name, decision.done ? "" : "no ", Name(decision.verb),
        decision.tensor == kNoTensor ? "" : " " + trace.tensor(decision.tensor).name);
  }
  return text;
}

Trace ChainTrace() {
  TraceBuilder builder;
  builder.Tensor("x", TensorKind::kInput, 10);
  for (const char* name : {"y1", "y2", "y3"}) builder.Tensor(name, TensorKind::kActivation, 10);
  for (const char* name : {"d3", "d2", "d1"}) builder.Tensor(name, TensorKind::kGradient, 10);
  constexpr OpType kConv = OpType::kConv2d;
  builder.Op("f1", Phase::kForward, {"x"}, {"y1"}, kConv, "l1")
      .Op("f2", Phase::kForward, {"y1"}, {"y2"}, kConv, "l2")
      .Op("f3", Phase::kForward, {"y2"}, {"y3"}, kConv, "l3")
      .Op("b3", Phase::kBackward, {"y2", "y3"}, {"d3"}, kConv, "l3")
      .Op("b2", Phase::kBackward, {"y1", "d3"}, {"d2"}, kConv, "l2")
      .Op("b1", Phase::kBackward, {"x", "d2"}, {"d1"}, kConv, "l1");
  return builder.Build();
}

Trace HookedChain() {
  Trace trace = ChainTrace();
  trace.recording.emplace().framework = "PyTorch";
  for (Op& op : trace.ops) op.recorded.emplace();
  trace.saved = {{TensorId{1}, 1, {4}}, {TensorId{2}, 2, {3}}, {TensorId{3}, 3, {3}}};
  StepHooks& hooks = trace.hooks.emplace();
  hooks.places = {{1, 1, 0}, {2, 1, 0}, {3, 1, 2}, {4, 0, 1}};
  hooks.offload = hooks.prefetch = hooks.evict = Duration();
  trace.Validate();
  return trace;
}

}  // namespace spillway::testing
