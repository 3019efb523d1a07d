#include "experiments/run/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "experiments/changes/step_changes.h"
#include "experiments/run/case_keys.h"
#include "experiments/run/cost_source.h"
#include "experiments/run/device_specification.h"
#include "experiments/run/memory_budget.h"
#include "experiments/run/run.h"
#include "experiments/run/workload_text.h"
#include "policies/plan/bound.h"
#include "sim/cost/deterministic.h"
#include "traces/base/error.h"
#include "traces/format.h"
#include "traces/lowering/lowering.h"
#include "traces/zoo/zoo.h"

namespace spillway::lab {
namespace {

// `timed` is true if the recording has times of the GPU. The host's times of another one were
// measured apart from it, without a profiler.
Duration HostTime(const Op& op, const HostTimes& host, bool timed) {
  const Duration recorded = op.recorded->host;
  switch (host.kind) {
    case HostTimes::Kind::kRecorded:
      return recorded;
    case HostTimes::Kind::kNone:
      return Duration();
    case HostTimes::Kind::kPlain:
      break;
  }
  // An op keeps the recorded time if its number of operators is unknown or more than a million.
  const double operators = op.FindAttribute("operators").value_or(timed ? -1 : 1);
  if (operators < 0 || operators > 1e6) return recorded;
  if (timed) {
    return std::min(recorded, host.per_operator * static_cast<int64_t>(operators));
  }
  // All but one of them stand for work of DTensor and FSDP2, which launches nothing: where launches
  // are slow, it is not.
  const Duration other = std::min(host.per_operator, HostTimes().per_operator);
  const Duration assumed = host.per_operator + other * (static_cast<int64_t>(operators) - 1);
  return recorded > Duration() && host == HostTimes() ? recorded : assumed;
}

std::string_view ModeName(bool training) { return training ? "training" : "inference"; }

// Throws `UsageError` if the option's value in the case differs from the value in the trace file.
void Expect(const Case& asked, const char* option, std::string_view wanted,
            std::string_view found) {
  if (wanted == found) return;
  throw UsageError(fmt::format(
      "workload '{}': the trace was lowered with {}={}; build another one with spillway trace "
      "build",
      WorkloadText(asked), option, found));
}

// Returns the values of some keys as one text. Cases with equal texts can share the inputs that
// depend only on these keys.
std::string TextOf(const Case& asked, std::initializer_list<std::string_view> keys) {
  std::string text;
  for (const std::string_view key : keys) text += CaseKeyOf(key).get(asked) + "\n";
  return text;
}

// Gives the device what a recorded program says of it: the host's time is part of the recording,
// and so is the speed of copies if the device is the recorded one, or one of which only the
// recording knows.
void AdaptTo(const Trace& trace, Device& device) {
  device.launch_overhead = Duration();
  device.beside_copy.fill(trace.hooks->beside_copy);
  const auto recorded_on = DeviceOf(trace.recording->device);
  if (trace.hooks->copies.bytes_per_second == 0) return;
  if (recorded_on && recorded_on->name != device.name) return;
  device.h2d.bandwidth = device.d2h.bandwidth = trace.hooks->copies;
  device.duplex = {2 * trace.hooks->copies.bytes_per_second};
}

// Returns the values of the keys that the ideal run of inputs depends on.
std::string IdealKeyOf(const Case& asked) { return TextOf(asked, {"allocator", "charge-input"}); }

// Returns the value of a key, which `make` makes unless the map has it.
template <typename Key, typename Value, typename Make>
const Value& Kept(std::map<Key, Value>& values, const Key& key, const Make& make) {
  const auto known = values.find(key);
  return known != values.end() ? known->second : values.emplace(key, make()).first->second;
}

// Returns the step with the changes that the case asks for, on its device and with its kernel
// times.
Trace ChangedAsAsked(const Case& asked, Trace step) {
  const Device device = LoadMachine(asked);
  const auto costed = [&](std::shared_ptr<const Trace> one) {
    LoadedCost cost = LoadCost(asked.cost, *one, device);
    if (cost.timed) one = std::move(cost.timed);
    return CostedStep{std::move(one), std::move(cost.model)};
  };
  return WithContext(
      [&] {
        return *Changed(std::make_shared<const Trace>(std::move(step)), asked.changes, device,
                        costed);
      },
      [&] { return fmt::format("workload '{}'", WorkloadText(asked)); });
}

}  // namespace

Trace WithHostTimes(Trace trace, const HostTimes& host) {
  const bool timed = trace.recording && !trace.recording->device.empty();
  if (trace.recording) {
    trace.recording->host_assumed =
        !timed && host == HostTimes() && std::ranges::none_of(trace.ops, [](const Op& op) {
          return op.recorded && op.recorded->host > Duration();
        });
  }
  for (Op& op : trace.ops) {
    if (op.recorded) op.recorded->host = HostTime(op, host, timed);
  }
  return trace;
}

Trace LoadTrace(const Case& asked) {
  if (IsTraceFile(asked.workload)) {
    Trace trace = WithHostTimes(ReadTrace(asked.workload), asked.host);
    if (asked.preset) Expect(asked, "preset", *asked.preset, trace.preset);
    if (asked.training) {
      Expect(asked, "mode", ModeName(*asked.training), ModeName(trace.training));
    }
    return asked.changes.any() ? ChangedAsAsked(asked, std::move(trace)) : trace;
  }
  const Workload workload = ParseWorkload(asked.workload);
  return LowerNetwork(
      BuildNetwork(workload.network, asked.attention.value_or(AttentionKind::kFused)),
      {workload.batch, asked.preset.value_or("torch"), asked.training.value_or(true),
       asked.optimizer, asked.precision.value_or(Precision::kFp32), asked.accumulate.value_or(1),
       asked.clip_norm, asked.loss_chunks.value_or(1)});
}

Device LoadMachine(const Case& asked) {
  Device device = LoadDevice(asked.device);
  for (const std::string& pool : asked.pools) AddPool(device, pool);
  // Bad parameters and files fail early.
  asked.allocator.Undecided().Make(Bytes(0), device.alignment);
  if (asked.compress) CompressionPlan(*asked.compress, device);
  return device;
}

InputFile DeviceFileOf(const std::string& specification) {
  const std::string base = DeviceBase(specification);
  if (base.ends_with(".toml")) return {"device", "file", base};
  return {"device", "data", fmt::format("sim/devices/{}.toml", base)};
}

Inputs::Inputs(const Case& asked, std::shared_ptr<const Trace> trace,
               std::unique_ptr<const CostModel> cost)
    : trace_(std::move(trace)), device_(LoadMachine(asked)) {
  if (!trace_) trace_ = std::make_shared<const Trace>(LoadTrace(asked));
  const bool is_trace_file = IsTraceFile(asked.workload);
  read_.push_back({"trace", is_trace_file ? "file" : "generated",
                   is_trace_file ? asked.workload : WorkloadText(asked)});
  read_.push_back(DeviceFileOf(asked.device));
  if (!cost) {
    LoadedCost loaded = LoadCost(asked.cost, *trace_, device_);
    cost = std::move(loaded.model);
    if (loaded.timed) trace_ = std::move(loaded.timed);
    std::ranges::move(loaded.read, std::back_inserter(read_));
  }
  if (trace_->recording) device_.beside_copy = {};
  if (trace_->hooks) AdaptTo(*trace_, device_);
  if (asked.deterministic) cost = std::make_unique<DeterministicCostModel>(std::move(cost));
  cost_ = std::move(cost);
}

Draft Inputs::DraftInAllMemory(const Case& asked) const {
  Draft run{trace_, device_, cost_, device_.memory, asked.allocator.Undecided()};
  run.options.charge_input = asked.charge_input;
  return run;
}

Draft Inputs::DraftOf(const Case& asked) const {
  Draft run = DraftInAllMemory(asked);
  run.memory = MemoryOf(asked);
  run.policy = asked.policy;
  run.backend = asked.backend;
  run.options.iterations = asked.iterations;
  return run;
}

const Report& Inputs::IdealOf(const Case& asked) const {
  const std::lock_guard lock(ideal_mutex_);
  return Kept(ideals_, IdealKeyOf(asked),
              [&] { return Predict(Ideal(DraftInAllMemory(asked))).report; });
}

Bytes Inputs::MemoryOf(const Case& asked) const {
  if (!asked.memory) return device().memory;
  if (const Bytes* size = asked.memory->bytes()) return *size;
  const std::lock_guard lock(mutex_);
  return Kept(memories_, IdealKeyOf(asked) + asked.memory->text(),
              [&] { return asked.memory->In(DraftInAllMemory(asked), &IdealOf(asked)); });
}

Duration Inputs::JointBoundIn(Bytes memory) const {
  const std::lock_guard lock(mutex_);
  return Kept(bounds_, memory, [&] { return JointBound(*trace(), *cost(), memory); });
}

Case Resolved(const LoadedCase& loaded) {
  Case asked = loaded.asked;
  const Inputs& inputs = *loaded.inputs;
  const Bytes memory = inputs.MemoryOf(asked);
  asked.memory = memory == Bytes::Unlimited() ? "unlimited" : fmt::format("{} B", memory.count());
  asked.cost = inputs.cost()->Provenance();
  return asked;
}

std::vector<InputFile> FilesOf(const LoadedCase& loaded) {
  std::vector<InputFile> files = loaded.inputs->read();
  const auto& [asked, inputs] = loaded;
  if (asked.compress && !asked.compress->densities_file.empty()) {
    files.push_back({"densities", "file", asked.compress->densities_file});
  }
  const std::string& plugin = asked.policy.spec().plugin;
  if (!plugin.empty()) files.push_back({"policy", "file", plugin});
  return files;
}

std::shared_ptr<Lazy<Inputs>> InputCache::Of(const Case& asked) {
  const std::string trace_key =
      WorkloadText(asked) + (asked.changes.any() ? TextOf(asked, {"device", "pool", "cost"}) : "");
  const std::string inputs_key = TextOf(asked, {"device", "pool", "cost", "deterministic"});
  if (!trace_ || trace_key != trace_key_) {
    trace_ = std::make_shared<Lazy<Trace>>(
        [asked] { return std::make_shared<const Trace>(LoadTrace(asked)); });
    inputs_ = nullptr;
  }
  if (!inputs_ || inputs_key != inputs_key_) {
    inputs_ = std::make_shared<Lazy<Inputs>>(
        [asked, trace = trace_] { return std::make_shared<const Inputs>(asked, trace->Get()); });
  }
  trace_key_ = trace_key;
  inputs_key_ = inputs_key;
  return inputs_;
}

}  // namespace spillway::lab
