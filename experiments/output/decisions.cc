#include "experiments/output/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "traces/base/error.h"
#include "traces/base/file.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"

namespace spillway::lab {
namespace {

constexpr std::string_view kFormat = "spillway-decisions";
constexpr int64_t kVersion = 1;

std::string_view KindName(PlacementKind kind) {
  constexpr std::array<std::string_view, 4> kNames{"allocate", "free", "enter", "leave"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<std::string> NameOrNull(const Trace& trace, TensorId tensor) {
  return tensor == kNoTensor ? std::nullopt : std::optional(trace.tensor(tensor).name);
}

}  // namespace

std::string FormatDecisions(const Trace& trace, const Report& report, const CostModel& cost) {
  JsonWriter json(2);
  json.BeginObject().Put("format", kFormat).Put("version", kVersion);
  json.Put("workload", trace.name);
  json.Key("decisions").BeginArray();
  for (const Decision& decision : report.decisions) {
    const Op& op = trace.op(decision.op);
    json.BeginObject().Put("op", op.name).Put("verb", Name(decision.verb));
    if (decision.verb == Verb::kRun) {
      const KernelRun& run = decision.run;
      json.Put("slot", op.slots[run.slot].name);
      json.Put("algorithm", cost.Kernels(op, run.slot, run.batch)[run.kernel].algorithm);
      json.Put("batch", run.batch);
    } else {
      json.Put("done", decision.done).Put("tensor", NameOrNull(trace, decision.tensor));
      if (!decision.done) json.Put("refusal", Name(decision.refusal));
    }
    json.EndObject();
  }
  json.EndArray().Key("placements").BeginArray();
  for (const Placement& placement : report.placements) {
    json.BeginObject()
        .Put("op", trace.op(placement.op).name)
        .Put("kind", KindName(placement.kind))
        .Put("arena", placement.on_device() ? "device" : report.pools[NumberOf(placement.pool)])
        .Put("tensor", NameOrNull(trace, placement.tensor))
        .Put("requested", placement.requested)
        .Put("offset", placement.block.offset)
        .Put("size", placement.block.size)
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

KernelRecords ReadKernelRecords(const std::filesystem::path& path) {
  return ParseKernelRecords(ReadFile(path), path.string());
}

KernelRecords ParseKernelRecords(std::string_view text, const std::string& origin) {
  JsonDocument json(text, origin);
  using JsonValue = JsonDocument::Value;
  json.ReadHeader(kFormat, kVersion);
  KernelRecords records;
  std::string current;  // the op whose parts are being read
  bool again = false;   // true if `current` ran before: its kernels are already in `records`
  const auto read_decision = [&](JsonValue value) {
    std::string op, verb;
    KernelRecord record;
    json.ReadObject(
        value, Required("op", [&](JsonValue v) { op = json.ReadString(v); }),
        Required("verb", [&](JsonValue v) { verb = json.ReadString(v); }),
        Optional("slot", [&](JsonValue v) { record.slot = json.ReadString(v); }),
        Optional("algorithm", [&](JsonValue v) { record.algorithm = json.ReadString(v); }),
        Optional("batch", [&](JsonValue v) { record.batch = json.ReadInteger(v, 1, 1 << 30); }),
        Optional("done", SkipJson), Optional("tensor", SkipJson), Optional("refusal", SkipJson));
    if (verb != Name(Verb::kRun)) {
      current.clear();
      return;
    }
    if (record.slot.empty() || record.algorithm.empty() || record.batch == 0) {
      json.Fail("a decision with the verb run needs slot, algorithm and batch");
    }
    if (op != current) again = records.contains(op);
    current = op;
    if (!again) records[op].push_back(std::move(record));
  };
  json.ReadRoot(Required("format", SkipJson), Required("version", SkipJson),
                Required("workload", SkipJson), Required("placements", SkipJson),
                Required("decisions", [&](JsonValue v) { json.ReadArray(v, read_decision); }));
  return records;
}

KernelPlan FixedKernels::ChooseKernels(PolicyContext& context, OpId id) {
  const Op& op = context.trace().op(id);
  const auto found = records_.find(op.name);
  if (found == records_.end()) {
    throw InputError(fmt::format("the recorded run has no op '{}'", op.name));
  }
  KernelPlan plan;
  for (const KernelRecord& record : found->second) {
    const auto slot = std::find_if(op.slots.begin(), op.slots.end(),
                                   [&](const Slot& s) { return s.name == record.slot; });
    const auto index = static_cast<uint32_t>(slot - op.slots.begin());
    const auto kernels = slot == op.slots.end() || record.batch > op.batch
                             ? std::span<const Kernel>()
                             : context.cost().Kernels(op, index, record.batch);
    const auto kernel = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) {
      return k.algorithm == record.algorithm;
    });
    if (kernel == kernels.end()) {
      throw InputError(fmt::format("op '{}': no kernel '{}' for slot '{}' at batch {}", op.name,
                                   record.algorithm, record.slot, record.batch));
    }
    plan.push_back({index, static_cast<uint32_t>(kernel - kernels.begin()), record.batch});
  }
  return plan;
}

}  // namespace spillway::lab
