#include "policies/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "traces/base/error.h"
#include "traces/base/json.h"
#include "traces/base/json_writer.h"
#include "traces/base/sha256.h"
#include "traces/format.h"

namespace spillway::policies {
namespace {

constexpr std::string_view kFormat = "spillway-plan";
constexpr int64_t kVersion = 1;

// Assumed times of the host are not the program's: the same plan is tried with others.
std::string DigestOf(const Trace& trace) {
  if (!trace.recording || !trace.recording->host_assumed) return Sha256(FormatTrace(trace));
  Trace program = trace;
  for (Op& op : program.ops) op.recorded->host = Duration();
  return Sha256(FormatTrace(program));
}

// Reads the parts of a plan that name tensors and ops of the trace.
class PlanReader {
 public:
  PlanReader(JsonDocument& document, const JointFacts& facts)
      : document_(document), facts_(facts), plan_(facts.trace()) {
    const Trace& trace = facts.trace();
    for (size_t i = 0; i < trace.tensors.size(); ++i) {
      tensors_.emplace(trace.tensors[i].name, static_cast<TensorId>(i));
    }
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      ops_.emplace(trace.ops[i].name, static_cast<OpId>(i));
    }
  }

  JointPlan Read() {
    document_.ReadRoot(
        Required("format", SkipJson), Required("version", SkipJson), Required("workload", SkipJson),
        Optional("trace_sha256", SkipJson),
        Optional("memory_bytes",
                 [this](Value value) {
                   plan_.memory =
                       Bytes(document_.ReadInteger(value, 1, Bytes::Unlimited().count()));
                 }),
        Required(
            "policy",
            [this](Value value) { plan_.policy = document_.ReadStringOrNull(value).value_or(""); }),
        Optional("updates", SkipJson), Optional("micro", [this](Value value) { ReadMicro(value); }),
        Optional("drops", [this](Value value) { plan_.drops = document_.ReadBool(value); }),
        Optional("apart", [this](Value value) { plan_.apart = document_.ReadBool(value); }),
        Required("storages",
                 [this](Value value) {
                   document_.ReadArray(value, [this](Value storage) { ReadStorage(storage); });
                 }),
        Required("kernels", [this](Value value) {
          document_.ReadArray(value, [this](Value kernels) { ReadKernels(kernels); });
        }));
    return std::move(plan_);
  }

 private:
  using Value = JsonDocument::Value;

  template <typename Id>
  Id Find(const char* what, const std::map<std::string_view, Id>& known, Value value) const {
    const std::string_view name = document_.ReadString(value);
    if (const auto found = known.find(name); found != known.end()) return found->second;
    document_.Fail(
        fmt::format("the trace has no {} {}", what, JsonExcerpt(fmt::format("\"{}\"", name))));
  }

  void ReadMicro(Value value) {
    const std::optional<std::string_view> wanted = document_.ReadStringOrNull(value);
    if (!wanted) return;
    for (const auto& [name, batches] : kMicroBatchNames) {
      if (name == *wanted) plan_.micro = batches;
    }
    if (plan_.micro) return;
    document_.Fail(fmt::format("expected null or one of {}", ListOfMicroBatches()));
  }

  void ReadStorage(Value value) {
    std::optional<TensorId> storage;
    StoragePlan plan;
    std::optional<OpId> prefetch;
    bool again = false;
    document_.ReadObject(
        value,
        Required("tensor",
                 [&](Value name) {
                   storage = Find("tensor", tensors_, name);
                   if (plan_.storages[Index(*storage)].fate != Fate::kKeep) {
                     document_.Fail("the storage is listed twice");
                   }
                 }),
        Required("fate",
                 [&](Value fate) {
                   const std::string_view name = document_.ReadString(fate);
                   if (name != "offload" && name != "evict" && name != "outside") {
                     document_.Fail("expected \"offload\", \"evict\" or \"outside\"");
                   }
                   plan.fate = name == "offload" ? Fate::kOffload
                               : name == "evict" ? Fate::kEvict
                                                 : Fate::kOutside;
                 }),
        Optional("prefetch", [&](Value op) { prefetch = Find("op", ops_, op); }),
        Optional("again", [&](Value flag) { again = document_.ReadBool(flag); }));
    const bool stays = StaysOnDevice(facts_.trace().tensor(*storage).kind);
    if ((plan.fate == Fate::kOutside) != stays) {
      document_.Fail("parameters and optimizer state, and no others, can be \"outside\"");
    }
    const std::optional<Gap>& gap = facts_.GapOf(*storage);
    if (!gap && !stays) document_.Fail("the storage is never idle, so it can have no plan");
    if (prefetch.has_value() != (plan.fate == Fate::kOffload)) {
      document_.Fail("an offloaded storage needs \"prefetch\", and no other storage has it");
    }
    if (prefetch && (*prefetch <= gap->left || *prefetch > gap->needed)) {
      document_.Fail(fmt::format("\"prefetch\" must be an op after '{}' and not after '{}'",
                                 facts_.trace().op(gap->left).name,
                                 facts_.trace().op(gap->needed).name));
    }
    if (again && plan.fate != Fate::kEvict) {
      document_.Fail("only an evicted storage has \"again\"");
    }
    plan.prefetch = prefetch.value_or(OpId{});
    plan.again = again;
    plan_.storages[Index(*storage)] = plan;
  }

  void ReadKernels(Value value) {
    std::optional<OpId> op;
    KernelPlan runs;
    document_.ReadObject(value, Required("op", [&](Value name) { op = Find("op", ops_, name); }),
                         Required("runs", [&](Value list) {
                           if (!op) document_.Fail("\"op\" must stand before \"runs\"");
                           document_.ReadArray(
                               list, [&](Value run) { runs.push_back(ReadRun(*op, run)); });
                         }));
    const Op& known = facts_.trace().op(*op);
    for (uint32_t slot = 0; slot < known.slots.size(); ++slot) {
      int64_t samples = 0;
      for (const KernelRun& run : runs) samples += run.slot == slot ? run.batch : 0;
      if (samples == known.batch) continue;
      document_.Fail(fmt::format("slot '{}' runs on {} samples, but the batch has {}",
                                 known.slots[slot].name, samples, known.batch));
    }
    plan_.kernels[Index(*op)] = std::move(runs);
  }

  KernelRun ReadRun(OpId id, Value value) const {
    const Op& op = facts_.trace().op(id);
    std::optional<uint32_t> slot;
    std::string_view algorithm;
    std::optional<int64_t> batch;
    document_.ReadObject(
        value,
        Required("slot",
                 [&](Value name) {
                   const std::string_view wanted = document_.ReadString(name);
                   for (uint32_t i = 0; i < op.slots.size(); ++i) {
                     if (op.slots[i].name == wanted) slot = i;
                   }
                   if (!slot) document_.Fail(fmt::format("'{}' has no such slot", op.name));
                 }),
        Required("batch", [&](Value n) { batch = document_.ReadInteger(n, 1, op.batch); }),
        Required("algorithm", [&](Value name) { algorithm = document_.ReadString(name); }));
    const std::vector<int64_t> batches = facts_.cost().Batches(op, *slot);
    if (!std::ranges::binary_search(batches, *batch)) {
      document_.Fail(
          fmt::format("the costs of '{}' are not known for a batch of {}", op.name, *batch));
    }
    const auto kernels = facts_.cost().Kernels(op, *slot, *batch);
    const auto found = std::ranges::find(kernels, algorithm, &Kernel::algorithm);
    if (found == kernels.end()) {
      std::vector<std::string_view> names;
      for (const Kernel& kernel : kernels) names.push_back(kernel.algorithm);
      document_.Fail(fmt::format("'{}' has no algorithm {} for slot '{}' here: {} are valid",
                                 op.name, JsonExcerpt(fmt::format("\"{}\"", algorithm)),
                                 op.slots[*slot].name, fmt::join(names, ", ")));
    }
    return {*slot, static_cast<uint32_t>(found - kernels.begin()), *batch};
  }

  JsonDocument& document_;
  const JointFacts& facts_;
  std::map<std::string_view, TensorId> tensors_;
  std::map<std::string_view, OpId> ops_;
  JointPlan plan_;
};

}  // namespace

std::vector<OpId> NeedsOf(const JointFacts& facts, const JointPlan& plan) {
  const Liveness& liveness = facts.liveness();
  std::vector<OpId> needs(plan.storages.size());
  std::vector<TensorId> evicted;
  for (const TensorId id : facts.movable()) {
    needs[Index(id)] = facts.GapOf(id)->needed;
    if (plan.storages[Index(id)].fate == Fate::kEvict) evicted.push_back(id);
  }
  std::ranges::stable_sort(evicted, {}, [&](TensorId id) { return needs[Index(id)]; });
  std::vector<OpId> visited(needs.size(), static_cast<OpId>(facts.trace().ops.size()));
  std::vector<TensorId> open;
  for (const TensorId first : evicted) {
    const OpId at = facts.GapOf(first)->needed;
    open.push_back(first);
    while (!open.empty()) {
      const TensorId wanted = open.back();
      open.pop_back();
      if (visited[Index(wanted)] == at) continue;
      visited[Index(wanted)] = at;
      for (const OpId writer : liveness.Writers(wanted)) {
        if (writer >= at) break;
        for (const TensorId input : facts.trace().op(writer).inputs) {
          const TensorId id = liveness.Root(input);
          const Fate fate = plan.storages[Index(id)].fate;
          const auto& gap = facts.GapOf(id);
          if (*liveness.LastUse(id) < at) {
            open.push_back(id);
          } else if (gap && fate != Fate::kKeep && gap->left < at && at <= needs[Index(id)]) {
            needs[Index(id)] = at;
            if (fate == Fate::kEvict) open.push_back(id);
          }
        }
      }
    }
  }
  return needs;
}

std::string FormatPlan(const JointFacts& facts, const JointPlan& plan) {
  const Trace& trace = facts.trace();
  JsonWriter json(2);
  json.BeginObject().Put("format", kFormat).Put("version", kVersion);
  json.Put("workload", trace.name).Put("trace_sha256", DigestOf(trace));
  if (plan.memory != Bytes::Unlimited()) json.Put("memory_bytes", plan.memory.count());
  json.Put("policy", plan.policy.empty() ? std::nullopt : std::optional(plan.policy));
  if (plan.early_updates) json.Put("updates", "early");
  json.Put("micro", plan.micro ? std::optional(Name(*plan.micro)) : std::nullopt);
  if (plan.drops) json.Put("drops", true);
  if (plan.apart) json.Put("apart", true);
  json.Key("storages").BeginArray();
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const StoragePlan& storage = plan.storages[i];
    if (storage.fate == Fate::kKeep) continue;
    json.BeginObjectOnOneLine().Put("tensor", trace.tensors[i].name);
    if (storage.fate == Fate::kOffload) {
      json.Put("fate", "offload").Put("prefetch", trace.op(storage.prefetch).name);
    } else if (storage.fate == Fate::kEvict) {
      json.Put("fate", "evict").Put("again", storage.again);
    } else {
      json.Put("fate", "outside");
    }
    json.EndObject();
  }
  json.EndArray().Key("kernels").BeginArray();
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    if (plan.kernels[i].empty()) continue;
    const Op& op = trace.ops[i];
    json.BeginObjectOnOneLine().Put("op", op.name).Key("runs").BeginArray();
    for (const KernelRun& run : plan.kernels[i]) {
      json.BeginObject().Put("slot", op.slots[run.slot].name).Put("batch", run.batch);
      json.Put("algorithm", facts.cost().Kernels(op, run.slot, run.batch)[run.kernel].algorithm);
      json.EndObject();
    }
    json.EndArray().EndObject();
  }
  return json.EndArray().EndObject().Take();
}

namespace {

// The trace that a plan is for.
struct Subject {
  std::string workload;
  std::optional<std::string> digest;  // other programs leave it out
  JsonDocument::Place place;
  bool early_updates = false;
};

Subject ReadSubject(JsonDocument& document) {
  using Value = JsonDocument::Value;
  document.ReadHeader(kFormat, kVersion);
  Subject subject;
  document.ReadRoot(
      Required("format", SkipJson), Required("version", SkipJson),
      Required("workload",
               [&](Value value) {
                 subject.workload = document.ReadString(value);
                 subject.place = document.Here();
               }),
      Optional("trace_sha256", [&](Value value) { subject.digest = document.ReadString(value); }),
      Optional("memory_bytes", SkipJson), Required("policy", SkipJson),
      Optional("updates",
               [&](Value value) {
                 const std::string_view when = document.ReadString(value);
                 if (when != "late" && when != "early") {
                   document.Fail("expected \"late\" or \"early\"");
                 }
                 subject.early_updates = when == "early";
               }),
      Optional("micro", SkipJson), Optional("drops", SkipJson), Optional("apart", SkipJson),
      Required("storages", SkipJson), Required("kernels", SkipJson));
  return subject;
}

}  // namespace

bool HasEarlyUpdates(std::string_view text, const std::string& origin) {
  JsonDocument document(text, origin);
  return ReadSubject(document).early_updates;
}

JointPlan ParsePlan(std::string_view text, const std::string& origin, const JointFacts& facts) {
  JsonDocument document(text, origin);
  const Trace& trace = facts.trace();
  const auto [workload, digest, place, early_updates] = ReadSubject(document);
  if (workload != trace.name) {
    document.Fail(place, fmt::format("the plan is for {}, and this is {}", workload, trace.name));
  }
  if (digest && *digest != DigestOf(trace)) {
    document.Fail(place, fmt::format("the plan is for another trace of the name {}: its preset or "
                                     "mode differs, or it is older; make a new plan",
                                     workload));
  }
  return PlanReader(document, facts).Read();
}

}  // namespace spillway::policies
